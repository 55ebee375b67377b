//! MountDevice of a volume that is a block device with a file system.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use refloat_mount::{BindOptions, Device, MountTable, NewMount};
use refloat_record::Verbatim;
use rustix::fs::{Mode, OFlags};

use crate::tool::in_a_message;
use crate::{Host, MountDevice, Problem, ToolError, VolumeError, run_tool};

use super::identity::{Action, DiskNumber, Found, Identity, Question, decide, parse_blkid};
use super::{Words, blank};

/// How much longer than other tools mkfs and fsck may take: both read or write a part of the device that grows with
/// its size, and killing them helps nobody.
const SLOW: u32 = 10;

/// The block device that a volume's file system is on, or is to be on.
pub(crate) struct Disk<'a> {
    /// The device, opened by name only.
    pub(crate) device: &'a OwnedFd,
    /// The path that it was opened by, for messages.
    pub(crate) given: &'a Path,
    /// The file system that the volume asks for; none or empty if it takes what is there.
    pub(crate) fs_type: Option<&'a str>,
    /// Whether the device itself must not be written to: it is mounted read-only then, whoever uses it. What only the pod
    /// may not write to is bound read-only by SetUp.
    pub(crate) read_only: bool,
    /// What the record says of the device, see [`Identity::recorded`].
    pub(crate) before: Option<Identity>,
    /// What a message calls the volume's fields.
    pub(crate) words: Words,
    /// What the record is to have as `providerInfo`: whatever the plugin needs, and this in it.
    pub(crate) info: &'a dyn Fn(&Identity) -> Verbatim,
}

/// Mounts the device at the volume's global path, after checking what is on it, with a file system made first if it
/// is truly blank. Announces the identity before each thing that can be seen.
///
/// The caller has looked whether the path is free.
pub(crate) fn mount(step: &MountDevice<'_>, disk: &Disk<'_>) -> Result<(), VolumeError> {
    let host = step.host;
    let device = BlockDevice::of(disk.device, disk.given)?;
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let number = step.record.is_some_and(|r| r.boot_id == host.boot_id).then(|| device.disk_number()).flatten();
    let option_ro = BindOptions { options: step.spec.mount_options.clone(), ..BindOptions::default() }.is_read_only();
    let mut found = identify(host, &device)?;
    let action = decide(Question {
        device: &device.shown(),
        found: &found,
        wanted: disk.fs_type.filter(|t| !t.is_empty()),
        read_only: step.spec.read_only || disk.read_only || option_ro,
        before: disk.before.as_ref(),
        disk: number.as_ref(),
        words: disk.words,
    })
    .map_err(VolumeError::Refused)?;

    let mut fresh = false;
    let fs_type = match action {
        Action::Use { fs_type } => fs_type,
        Action::Format { fs_type, again } => {
            format(step, disk, &device, &fs_type, again)?;
            found = identify(host, &device)?;
            fresh = true;
            fs_type
        }
    };
    let Found::Signature { kind, uuid } = &found else {
        return Err(changed(&device, "the file system that was made on it is not found again"));
    };
    if *kind != fs_type {
        return Err(changed(&device, &format!("it was to have {fs_type} and has {kind}")));
    }
    let identity = Identity { device: device.shown(), fs_uuid: uuid.clone(), fs_type, formatting: None };
    step.announce(Some(device.shown()), None, Some((disk.info)(&identity)))?;

    let read_only = option_ro || disk.read_only || device.read_only();
    if !read_only && !step.spec.read_only && !fresh && !is_mounted(&table, &device) {
        check_and_repair(host, &device, &identity.fs_type)?;
    }
    let mut options = step.spec.mount_options.clone();
    if read_only && !option_ro {
        options.push("ro".into());
    }
    device.unchanged()?;
    let mount =
        NewMount::file_system(host.kernel, &identity.fs_type, &device.shown(), &options).map_err(VolumeError::Mount)?;
    let announced = step.announce(Some(device.shown()), Some(&mount), Some((disk.info)(&identity)))?;
    let dir = announced.make_volume_dir(0o750)?;
    announced.attach(mount, &dir)
}

/// A block device, by the number that its node had when it was opened.
#[derive(Debug)]
struct BlockDevice {
    /// Its node, symlinks resolved.
    path: PathBuf,
    number: Device,
}

impl BlockDevice {
    fn of(fd: &OwnedFd, given: &Path) -> Result<Self, VolumeError> {
        let io = |doing, source| VolumeError::Io { doing, path: given.to_path_buf(), source };
        let number = number(fd).map_err(|e| io("look at", e))?;
        // The kernel's own name for what was opened: no second resolution that could end elsewhere.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|e| io("resolve", e))?;
        Ok(Self { path, number })
    }

    fn shown(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn sys(&self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}:{}", self.number.major, self.number.minor))
    }

    fn read_only(&self) -> bool {
        std::fs::read_to_string(self.sys().join("ro")).is_ok_and(|ro| ro.trim() == "1")
    }

    fn disk_number(&self) -> Option<DiskNumber> {
        // A partition's disk is one folder up.
        let sequence = [self.sys().join("diskseq"), self.sys().join("../diskseq")]
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())?;
        Some(DiskNumber {
            number: format!("{}:{}", self.number.major, self.number.minor),
            sequence: sequence.trim().to_owned(),
        })
    }

    /// The node still stands for the device that was checked.
    fn unchanged(&self) -> Result<(), VolumeError> {
        let io = |doing, source| VolumeError::Io { doing, path: self.path.clone(), source };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|e| io("open again", e.into()))?;
        if number(&fd).map_err(|e| io("look at", e))? == self.number {
            Ok(())
        } else {
            Err(changed(self, "its node stands for another device now"))
        }
    }
}

fn number(fd: &OwnedFd) -> std::io::Result<Device> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(Device { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) })
}

fn changed(device: &BlockDevice, what: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "OtherDevice",
        format!("{} changed while it was being mounted: {what}", device.shown()),
        "see whether somebody else formats or replaces the device; it is tried again",
    ))
}

/// Whether any mount shows this device: a file system in use must not be repaired.
fn is_mounted(table: &MountTable, device: &BlockDevice) -> bool {
    !table.of_device(device.number).is_empty()
}

/// Runs a tool that may say no, and gives its exit code, its standard output, and what it complained of, for a message.
fn tool(program: &str, args: &[&OsStr], deadline: Duration) -> Result<(i32, String, String), ToolError> {
    let output = run_tool(program, args, deadline)?;
    let stderr = in_a_message(&output.stderr);
    match output.code {
        Some(code) => Ok((code, String::from_utf8_lossy(&output.stdout).into_owned(), stderr)),
        None => Err(ToolError::Failed { program: program.into(), code: None, stderr }),
    }
}

/// Whether the tool is not there.
pub(crate) fn is_missing(error: &ToolError) -> bool {
    // The latter if a folder of the PATH cannot be looked into.
    let kinds = [std::io::ErrorKind::NotFound, std::io::ErrorKind::PermissionDenied];
    matches!(error, ToolError::Start { source, .. } if kinds.contains(&source.kind()))
}

/// The problem of a tool that is not there.
pub(crate) fn missing(program: &str, package: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "ToolMissing",
        format!("{program} is not installed on this node"),
        format!("install it ({package})"),
    ))
}

/// Asks `blkid` what is on the device, past any cache.
fn identify(host: &Host, device: &BlockDevice) -> Result<Found, VolumeError> {
    let flags = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-s", "UUID", "-o", "export"];
    let mut args: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    args.push(device.path.as_os_str());
    let (code, stdout, stderr) = match tool("blkid", &args, host.tool_deadline) {
        Ok(answer) => answer,
        Err(error) if is_missing(&error) => return Err(missing("blkid", "util-linux")),
        Err(error) => return Err(VolumeError::Tool(error)),
    };
    parse_blkid(code, &stdout)
        .ok_or_else(|| VolumeError::Tool(ToolError::Failed { program: "blkid".into(), code: Some(code), stderr }))
}

/// How often mkfs is tried again at once if it finds the device in use, and how long to wait in between.
///
/// It was just opened for us alone and closed again. A child that another thread was starting at that moment has a copy
/// of that descriptor until its `exec`; whoever else uses the device will still do so after 100 ms.
const IN_USE_TRIES: u32 = 6;
const IN_USE_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Makes a file system on a truly blank device, or again where that was interrupted.
///
/// # Source
/// `formatAndMountSensitive` of `mount-utils`: `-F -m0` for ext3 and ext4, `-f` for xfs.
fn format(
    step: &MountDevice<'_>,
    disk: &Disk<'_>,
    device: &BlockDevice,
    fs_type: &str,
    again: bool,
) -> Result<(), VolumeError> {
    if again {
        blank::writable(&device.path, &device.sys(), disk.words)?;
    } else {
        blank::check(&device.path, &device.sys(), disk.words)?;
    }
    let identity = Identity {
        device: device.shown(),
        fs_uuid: None,
        fs_type: fs_type.to_owned(),
        formatting: device.disk_number(),
    };
    step.announce(Some(device.shown()), None, Some((disk.info)(&identity)))?;
    device.unchanged()?;
    let program = format!("mkfs.{fs_type}");
    let flags: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let mut args: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    args.push(device.path.as_os_str());
    let mut tries = 1;
    let mut answer = tool(&program, &args, step.host.tool_deadline * SLOW);
    while matches!(&answer, Ok((code, _, stderr)) if *code != 0 && stderr.contains("in use")) && tries < IN_USE_TRIES {
        std::thread::sleep(IN_USE_PAUSE);
        tries += 1;
        answer = tool(&program, &args, step.host.tool_deadline * SLOW);
    }
    match answer {
        Ok((0, ..)) => Ok(()),
        Ok((code, _, stderr)) => Err(VolumeError::Tool(ToolError::Failed { program, code: Some(code), stderr })),
        Err(error) if is_missing(&error) => Err(missing(&program, "e2fsprogs, xfsprogs or the like")),
        Err(error) => Err(VolumeError::Tool(error)),
    }
}

/// Lets `fsck` repair what it can without asking.
///
/// # Source
/// `checkAndRepairFilesystem` of `mount-utils`: 1 means repaired, 4 means not repaired, all else is only told.
fn check_and_repair(host: &Host, device: &BlockDevice, fs_type: &str) -> Result<(), VolumeError> {
    let args = [OsStr::new("-a"), device.path.as_os_str()];
    match tool("fsck", &args, host.tool_deadline * SLOW) {
        Ok((0, ..)) => Ok(()),
        Ok((1, stdout, _)) => {
            let said = in_a_message(stdout.as_bytes());
            tracing::info!(device = %device.path.display(), "fsck repaired the file system: {said}");
            Ok(())
        }
        Ok((code, stdout, stderr)) if code & 4 != 0 => Err(VolumeError::Refused(Problem::new(
            "FileSystemErrors",
            format!(
                "the {fs_type} file system on {} has errors that fsck could not repair: {}",
                device.shown(),
                // With names of files that nobody vouches for.
                in_a_message(format!("{}\n{stderr}", stdout.trim()).as_bytes())
            ),
            "save what is needed and repair it by hand with fsck",
        ))),
        Ok((code, _, stderr)) => {
            tracing::warn!(device = %device.path.display(), "fsck ended with {code}: {stderr}");
            Ok(())
        }
        Err(error) if is_missing(&error) => {
            tracing::warn!(device = %device.path.display(), "fsck is not installed; mounting without a check");
            Ok(())
        }
        Err(error) => Err(VolumeError::Tool(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        let error = tool("refloat-no-such-tool", &[], Duration::from_secs(5)).unwrap_err();
        assert!(is_missing(&error), "{error:?}");
    }
}
