//! The virtual machine's kernel and file systems, of Debian's packages. Nothing is installed on this machine: they are fetched
//! with all that they depend on, and extracted.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::run;

/// What the machine has; `apt-get` adds what these depend on.
const PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    // what the tests' programs are linked with, and an ordinary user land
    "libc6",
    "libgcc-s1",
    "bash",
    "dash",
    "busybox-static",
    "coreutils",
    "grep",
    "sed",
    "procps",
    "kmod",
    "udev",
    "util-linux",
    "mount",
    "iproute2",
    "nftables",
    // file systems, and what is tested
    "e2fsprogs",
    "xfsprogs",
    "nfs-common",
    "nfs-kernel-server",
    "open-iscsi",
    "multipath-tools",
    "sg3-utils",
    "lsscsi",
];
/// What of the packages nothing in the machine reads.
const LEFT_OUT: &[&str] = &[
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
    "./usr/share/info/*",
    "./usr/share/perl*",
    "./usr/lib/python3*",
    "./usr/lib/x86_64-linux-gnu/perl*",
];
/// What the packages' scripts would have made.
const FILES: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
         statd:x:100:65534::/var/lib/nfs:/usr/sbin/nologin\n_rpc:x:101:65534::/run/rpcbind:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\ndisk:x:6:\nkmem:x:15:\nnogroup:x:65534:\n"),
    ("etc/exports", ""),
    ("etc/hosts", "127.0.0.1 localhost vm\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\nrpc: files\n"),
    ("etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.2026-01.test.refloat:node\n"),
];
/// The kernel's target keeps its state in `/etc/target` and `/var/target`.
const FOLDERS: &[&str] = &["tests", "mnt", "etc/target", "var/target/pr", "var/target/alua", "var/lib/iscsi"];
/// What the root file system is reached with, where it is no part of the kernel itself.
const FIRST_MODULES: &[&str] = &["virtio_pci", "virtio_blk", "ext4"];

const INITRAMFS: &str = include_str!("../../../tests/vm/initramfs");
const INIT: &str = include_str!("../../../tests/vm/init");
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Where it all is.
pub(super) struct Root {
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The first file system.
    pub(super) initramfs: PathBuf,
    /// The disk with the root file system.
    pub(super) disk: PathBuf,
    /// The root file system's files.
    files: PathBuf,
}

/// Makes it below a folder, unless it is there. The inner error says why it cannot be had.
pub(super) fn make(folder: &Path) -> Result<Result<Root, String>> {
    let files = folder.join("root");
    let root = |kernel| Root {
        kernel,
        initramfs: folder.join("initramfs"),
        disk: folder.join("root.img"),
        files: files.clone(),
    };
    // Of another release of Debian are other programs, and the tests are linked for this one.
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let wanted = format!("{PACKAGES:?}\n{LEFT_OUT:?}\n{FILES:?}\n{FOLDERS:?}\n{INITRAMFS}\n{INIT}\n{release}");
    let made = folder.join("made-of");
    if std::fs::read_to_string(&made).is_ok_and(|text| text == wanted) {
        return Ok(Ok(root(kernel(&files)?.1)));
    }
    println!("making the virtual machine's file system in {}", folder.display());
    let _ = std::fs::remove_file(&made);
    for old in [files.as_path(), &folder.join("packages")] {
        remove(old)?;
    }
    if let Err(why) = fetch(&folder.join("packages"))? {
        return Ok(Err(why));
    }
    extract(&folder.join("packages"), &files)?;
    remove(&folder.join("packages"))?;
    let (version, kernel) = kernel(&files)?;
    let root = root(kernel);
    write_own(&files)?;
    run(root.program("usr/bin/kmod", "depmod").arg("-b").arg(&files).arg(&version))?;
    root.make_initramfs(&folder.join("first"), &version)?;
    root.make_image(&files, &root.disk, "1G")?;
    std::fs::write(&made, wanted)?;
    Ok(Ok(root))
}

/// Fetches the packages and what they depend on, as if nothing were installed.
fn fetch(folder: &Path) -> Result<Result<(), String>> {
    std::fs::create_dir_all(folder.join("partial"))?;
    let status = folder.join("status");
    std::fs::write(&status, "")?;
    let mut command = Command::new("apt-get");
    for option in [
        format!("Dir::State::status={}", status.display()),
        format!("Dir::Cache::archives={}", folder.display()),
        "Dir::Cache::pkgcache=".into(),
        "Dir::Cache::srcpkgcache=".into(),
        "Debug::NoLocking=1".into(),
        "APT::Install-Recommends=0".into(),
        // So that no user is needed who may read the build folder.
        "APT::Sandbox::User=root".into(),
        "Acquire::http::Timeout=30".into(),
    ] {
        command.arg("-o").arg(option);
    }
    command.args(["--quiet=2", "--yes", "--download-only", "install"]).args(PACKAGES);
    let output =
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).output().context("cannot run apt-get")?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Err(format!(
        "Debian's packages cannot be fetched: {}",
        said.lines().last().unwrap_or("apt-get does not say why")
    )))
}

/// Extracts all packages into one tree, in which `/bin` and the like are links, as on any Debian.
fn extract(packages: &Path, files: &Path) -> Result<()> {
    for folder in ["bin", "sbin", "lib", "lib64"] {
        std::fs::create_dir_all(files.join("usr").join(folder))?;
        symlink(Path::new("usr").join(folder), files.join(folder))?;
    }
    for entry in std::fs::read_dir(packages)? {
        let package = entry?.path();
        if package.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        let mut reader = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package).stdout(Stdio::piped()).spawn()?;
        let archive = reader.stdout.take().context("dpkg-deb has no output")?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--keep-directory-symlink", "--directory"]).arg(files).stdin(archive);
        run(tar.args(LEFT_OUT.iter().map(|what| format!("--exclude={what}"))))?;
        ensure!(reader.wait()?.success(), "dpkg-deb cannot read {}", package.display());
    }
    Ok(())
}

/// The kernel's version and file.
fn kernel(files: &Path) -> Result<(String, PathBuf)> {
    for entry in std::fs::read_dir(files.join("boot"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(version) = name.strip_prefix("vmlinuz-") {
            return Ok((version.to_owned(), path));
        }
    }
    anyhow::bail!("the package of the kernel has none")
}

/// What no package has.
fn write_own(files: &Path) -> Result<()> {
    for folder in FOLDERS {
        std::fs::create_dir_all(files.join(folder))?;
    }
    for (path, text) in FILES {
        let path = files.join(path);
        std::fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        std::fs::write(&path, text)?;
    }
    if !files.join("usr/bin/sh").try_exists()? {
        symlink("dash", files.join("usr/bin/sh"))?;
    }
    write_program(&files.join("usr/sbin/init-tests"), INIT)
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
}

impl Root {
    /// A program of the root file system, run on this machine under a name.
    fn program(&self, path: &str, name: &str) -> Command {
        let mut command = Command::new(self.files.join(LIBRARIES).join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(self.files.join(LIBRARIES))
            .args(["--argv0", name])
            .arg(self.files.join(path));
        command.stdin(Stdio::null());
        command
    }

    /// The first file system: busybox, and the modules that the disk needs.
    fn make_initramfs(&self, folder: &Path, version: &str) -> Result<()> {
        for name in ["bin", "modules", "dev", "root"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        std::fs::copy(self.files.join("usr/bin/busybox"), folder.join("bin/busybox"))?;
        write_program(&folder.join("init"), INITRAMFS)?;
        let modules = self.files.join("usr/lib/modules").join(version);
        let table = std::fs::read_to_string(modules.join("modules.dep")).context("cannot read the modules' table")?;
        let mut order = String::new();
        for path in in_order(&table, FIRST_MODULES) {
            let name = Path::new(path).file_name().context("a module without a name")?;
            std::fs::copy(modules.join(path), folder.join("modules").join(name))?;
            writeln!(order, "{}", name.to_string_lossy())?;
        }
        std::fs::write(folder.join("modules/order"), order)?;
        let busybox = self.files.join("usr/bin/busybox");
        let mut command = Command::new("sh");
        command.args(["-c", "cd \"$1\" && find . | \"$2\" cpio -o -H newc >\"$3\"", "sh"]);
        run(command.arg(folder).arg(busybox).arg(&self.initramfs).stderr(Stdio::null()))
    }

    /// Makes a disk with what `write` puts into an empty folder.
    pub(super) fn make_disk(&self, folder: &Path, disk: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        remove(folder)?;
        std::fs::create_dir_all(folder)?;
        write(folder)?;
        self.make_image(folder, disk, "1G")?;
        remove(folder)
    }

    /// Makes a sparse file with an ext4 file system that has these files.
    fn make_image(&self, files: &Path, image: &Path, size: &str) -> Result<()> {
        if image.try_exists()? {
            std::fs::remove_file(image)?;
        }
        let mut command = self.program("usr/sbin/mke2fs", "mke2fs");
        command.env("MKE2FS_CONFIG", self.files.join("etc/mke2fs.conf"));
        command.args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"]).arg(files).arg(image).arg(size);
        run(command.stdout(Stdio::null()))
    }
}

/// Removes a folder of the build folder, in which nothing is mounted, if it is there.
#[allow(clippy::disallowed_methods, reason = "it is ours alone, and no link in it is followed")]
fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The files of modules and of all that they need, in the order in which they are to be loaded.
fn in_order<'a>(table: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let mut order: Vec<&str> = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        // Not in the table: a part of the kernel itself.
        let line = table.lines().filter_map(|line| line.split_once(':')).find(|(path, _)| path.ends_with(&file));
        let Some((path, needs)) = line else { continue };
        for path in needs.split_ascii_whitespace().rev().chain([path]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let table = "k/a.ko: k/b.ko k/c.ko\nk/b.ko: k/c.ko\nk/c.ko:\nk/d.ko: k/c.ko\n";
        assert_eq!(in_order(table, &["a", "builtin", "d"]), ["k/c.ko", "k/b.ko", "k/a.ko", "k/d.ko"]);
    }
}
