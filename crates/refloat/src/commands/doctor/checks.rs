//! The checks of `doctor`. They read, and change nothing.

use std::path::{Path, PathBuf};

use anyhow::Context;
use refloat_mount::{Kernel, NodeRoot, TableReader};
use rustix::fs::{Access, AtFlags, CWD};

use super::Check;
use crate::config::Settings;
use crate::exit::{Failure, chain};

/// What Refloat does needs these. Numbers as in `capability.h`.
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (21, "CAP_SYS_ADMIN", "mount and unmount"),
    (0, "CAP_CHOWN", "give files to a pod's fsGroup"),
    (1, "CAP_DAC_OVERRIDE", "look into folders of other users"),
    (3, "CAP_FOWNER", "set modes of other users' files"),
    (4, "CAP_FSETID", "set the setgid bit for an fsGroup"),
];

/// Makes all checks.
pub(super) fn all(settings: &Settings) -> Result<Vec<Check>, Failure> {
    let mut checks = vec![privileges()?, user_namespace()];
    checks.extend(kernel());
    checks.extend(folders(settings));
    checks.extend(tools());
    checks.push(loop_devices());
    checks.push(inotify());
    Ok(checks)
}

fn privileges() -> Result<Check, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("cannot read /proc/self/status")
        .map_err(|e| Failure::with_hint(e, "mount proc at /proc"))?;
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).map(str::trim);
    let effective = effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let missing = CAPABILITIES.iter().filter(|(bit, ..)| effective & (1 << bit) == 0);
    let missing: Vec<_> = missing.map(|(_, name, why)| format!("{name} (to {why})")).collect();
    if missing.is_empty() {
        return Ok(Check::ok("privileges", "all that is needed"));
    }
    let hint = "run as root on the node; in a container, set securityContext.privileged; `scan`, `explain` and \
                `record` only need to read the folders";
    Ok(Check::missing("privileges", format!("without {}", missing.join(", ")), hint))
}

fn user_namespace() -> Check {
    // The first user namespace maps every id to itself.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<_> = map.split_ascii_whitespace().collect();
    if fields == ["0", "0", "4294967295"] {
        return Check::ok("user-namespace", "the machine's own");
    }
    Check::limited(
        "user-namespace",
        "one below the machine's own",
        "block devices cannot be mounted here, and only mapped groups can be an fsGroup; run in the machine's own",
    )
}

fn kernel() -> Vec<Check> {
    let has = Kernel::detect().features();
    let mut checks = vec![if has.openat2 {
        Check::ok("kernel-openat2", "there (safe walking)")
    } else {
        Check::missing(
            "kernel-openat2",
            "not there",
            "there is no safe way to walk folders without it: use Linux 5.6 or later",
        )
    }];
    for (name, there, lost, version) in [
        ("kernel-mount-calls", has.new_mount_calls, "mounts are seen before their id is known", "5.2"),
        ("kernel-mount-setattr", has.mount_setattr, "a read-only bind is writable for a moment", "5.12"),
        ("kernel-listmount", has.listmount, "the whole mount table is read at every change", "6.15"),
        ("kernel-unique-mount-ids", has.unique_mount_id, "a mount is known by type, source and root only", "6.8"),
    ] {
        checks.push(if there {
            Check::ok(name, "there")
        } else {
            Check::limited(name, format!("not there: {lost}"), format!("Linux {version} or later has it"))
        });
    }
    checks
}

fn folders(settings: &Settings) -> Vec<Check> {
    let mut checks = Vec::new();
    match NodeRoot::open(&settings.root_dir) {
        Ok(root) => {
            let writable = rustix::fs::accessat(CWD, root.path(), Access::WRITE_OK, AtFlags::EACCESS).is_ok();
            let shown = root.path().display();
            checks.push(if writable {
                Check::ok("root-dir", format!("{shown}"))
            } else {
                let hint = "volumes cannot be made there: remount it read-write, or run as a user who may write";
                Check::missing("root-dir", format!("{shown} cannot be written"), hint)
            });
            checks.extend(mount_table(root.path()));
        }
        Err(error) => checks.push(Check::missing(
            "root-dir",
            chain(&error),
            "name the kubelet's root folder with --root-dir, or make it: install -d -m 0750 DIR",
        )),
    }
    checks.push(state_folder(&settings.state_dir));
    checks
}

/// Checks the mount that the root lies in, and whether the table has doubled itself.
fn mount_table(root: &Path) -> Vec<Check> {
    let table = match TableReader::new(Kernel::detect()).read() {
        Ok(table) => table,
        Err(error) => return vec![Check::missing("mount-table", chain(&error), "mount proc at /proc")],
    };
    let mut checks = Vec::new();
    if let Some(mount) = table.covering(root) {
        checks.push(if mount.shared() {
            Check::ok("mount-propagation", format!("{} is shared", mount.point().display()))
        } else {
            Check::limited(
                "mount-propagation",
                format!("{} is private", mount.point().display()),
                format!(
                    "containers that have the root mounted with HostToContainer do not see new volumes; make it \
                     shared: mount --make-rshared {}",
                    mount.point().display()
                ),
            )
        });
    }
    checks.push(copies(root, &table));
    let mut points: Vec<_> = table.iter().map(refloat_mount::Mount::point).collect();
    points.sort_unstable();
    points.dedup();
    let (all, distinct) = (table.len(), points.len());
    // A few mounts over one another are usual (a root bound on itself); half the table is not.
    checks.push(if all > 1000 && all > 2 * distinct {
        Check::limited(
            "mount-table",
            format!("{all} mounts at only {distinct} places"),
            "something binds a shared folder onto itself at every start, and the table doubles each time: find it with \
             `findmnt -o TARGET,PROPAGATION,SOURCE`, make its mount private, and unmount the upper layers or reboot",
        )
    } else {
        Check::ok("mount-table", format!("{all} mounts at {distinct} places"))
    });
    checks
}

/// Whether the root was bound onto itself, so that each mount below it shows more than once.
fn copies(root: &Path, table: &refloat_mount::MountTable) -> Check {
    let name = "mount-copies";
    let (all, hidden) = (table.under(root).len(), table.under(root).filter(|m| m.hidden()).count());
    let shown = root.display();
    if hidden == 0 {
        return Check::ok(name, format!("each of {all} mounts below {shown} shows once"));
    }
    // The folder that the copies hang on: the root, or the nearest above it that has layers.
    let layered = root.ancestors().find(|folder| table.stack(folder).len() > 1).unwrap_or(root);
    let (layers, at) = (table.stack(layered).len(), layered.display());
    let seen = all - hidden;
    let message = format!(
        "{layers} mounts lie over one another at {at}: {all} mounts below {shown}, of which a path leads to {seen}"
    );
    let way_out = format!(
        "a volume that is mounted in the lower one only is hidden, and `refloat explain` says which. If nothing needs the \
         binds, take the upper ones off, `umount -l {at}`, after stopping what binds them; if the root has to be a mount \
         of its own, bind it once at boot (`mount --bind {at} {at}`) and do not repeat it"
    );
    Check::limited(name, message, way_out)
}

fn state_folder(folder: &Path) -> Check {
    let name = "state-dir";
    let shown = folder.display();
    let writable = |path: &Path| rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    match std::fs::symlink_metadata(folder) {
        Ok(meta) if !meta.is_dir() => {
            Check::missing(name, format!("{shown} is no folder"), "name another with --state-dir")
        }
        Ok(_) if !writable(folder) => Check::missing(
            name,
            format!("{shown} cannot be written"),
            "without records nothing is mounted: remount it read-write, free space, or name another with --state-dir",
        ),
        Ok(_) => Check::ok(name, format!("{shown}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = folder.ancestors().skip(1).find(|p| std::fs::symlink_metadata(p).is_ok());
            if parent.is_some_and(writable) {
                return Check::ok(name, format!("{shown} is not there yet and will be made"));
            }
            Check::missing(name, format!("{shown} is not there and cannot be made"), "name another with --state-dir")
        }
        Err(error) => Check::missing(name, format!("cannot look at {shown}: {error}"), "name another with --state-dir"),
    }
}

fn tools() -> Vec<Check> {
    let devices = "local volumes on block devices need it";
    let tools = [
        ("tool-blkid", "blkid", "tell what is on a device", devices, "util-linux"),
        ("tool-fsck", "fsck", "check a file system before it is mounted", devices, "util-linux and e2fsprogs"),
        ("tool-mkfs-ext4", "mkfs.ext4", "format a blank device", devices, "e2fsprogs"),
        (
            "tool-mount-glusterfs",
            "mount.glusterfs",
            "mount a volume of a cluster",
            "GlusterFS volumes need it",
            "glusterfs-client",
        ),
        ("tool-mount-nfs", "mount.nfs", "mount an export of a server", "NFS volumes need it", "nfs-common"),
    ];
    let check = |(name, tool, why, who, package): (&'static str, &str, &str, &str, &str)| match find_tool(tool) {
        Some(path) => Check::ok(name, path.display().to_string()),
        None => Check::limited(name, format!("no {tool}: cannot {why}"), format!("{who}; install {package}")),
    };
    tools.map(check).into()
}

/// Finds a tool as the manager does: in `PATH`, then where system tools are.
fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(system);
    folders.find_map(|folder| {
        let path = folder.join(tool);
        rustix::fs::access(&path, Access::EXEC_OK).is_ok().then_some(path)
    })
}

fn loop_devices() -> Check {
    let name = "loop-devices";
    match rustix::fs::access("/dev/loop-control", Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Check::ok(name, "/dev/loop-control can be used"),
        Err(error) => Check::limited(
            name,
            format!("/dev/loop-control cannot be used: {error}"),
            "raw block volumes and the full demo need it: load the module loop, and run as root",
        ),
    }
}

fn inotify() -> Check {
    let name = "inotify";
    let read = |limit: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{limit}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    match (read("max_user_instances"), read("max_user_watches")) {
        (Some(instances), Some(watches)) if instances >= 16 && watches >= 64 => {
            Check::ok(name, format!("{instances} instances, {watches} watches"))
        }
        (Some(instances), Some(watches)) => Check::limited(
            name,
            format!("only {instances} instances, {watches} watches"),
            "changes of manifests may go unnoticed: sysctl fs.inotify.max_user_instances=128 fs.inotify.max_user_watches=8192",
        ),
        _ => Check::limited(name, "the limits cannot be read", "mount proc at /proc"),
    }
}
