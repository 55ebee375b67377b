//! The files that stand for ports, disks and maps.

use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use refloat_mount::loopdev;
use rustix::fs::{CWD, FileType, Mode};

use super::{DmMap, PathTo, Port, Shared, State, Transport, must};

/// The number of a device node.
pub(super) fn number_of(device: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(device)?.rdev())
}

/// Makes a node for the device with this number.
pub(super) fn make_node(node: &Path, number: u64) -> io::Result<()> {
    Ok(rustix::fs::mknodat(CWD, node, FileType::BlockDevice, Mode::from_raw_mode(0o660), number)?)
}

fn write(folder: &Path, name: &str, text: &str) {
    must(name, std::fs::write(folder.join(name), text));
}

fn numbers(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

impl Shared {
    /// What its transport puts between the host and the target: one folder.
    fn behind(port: Port, transport: &Transport) -> String {
        match transport {
            Transport::Fc(_) => format!("rport-{}:0-{}", port.host, port.target),
            Transport::Session(session) => format!("session{session}"),
        }
    }

    pub(super) fn make_port(&self, port: Port, transport: &Transport) -> io::Result<()> {
        let class = self.root.join("sys/class");
        let host = class.join(format!("scsi_host/host{}", port.host));
        std::fs::create_dir_all(&host)?;
        std::fs::write(host.join("scan"), "")?;
        let Transport::Fc(wwn) = transport else { return Ok(()) };
        let name = format!("0x{wwn}\n");
        std::fs::create_dir_all(class.join(format!("fc_host/host{}", port.host)))?;
        let target = class.join(format!("fc_transport/target{}:0:{}", port.host, port.target));
        let remote = class.join("fc_remote_ports").join(Self::behind(port, transport));
        for folder in [&target, &remote] {
            std::fs::create_dir_all(folder)?;
            std::fs::write(folder.join("port_name"), &name)?;
        }
        std::fs::write(remote.join("scsi_target_id"), port.target.to_string())?;
        std::fs::write(remote.join("port_state"), "Online\n")
    }

    /// Makes a disk: its name is the last thing to be seen.
    pub(super) fn add_disk(&self, state: &mut State, name: &str, unit: &str, port: Port) {
        let spec = state.units.get(unit).expect("a unit").clone();
        let transport = &state.ports.iter().find(|(its, _)| *its == port).expect("a port").1;
        let address = format!("{}:0:{}:{}", port.host, port.target, spec.number);
        let folder = PathBuf::from(format!(
            "sys/devices/host{}/{}/target{}:0:{}/{address}",
            port.host,
            Self::behind(port, transport),
            port.host,
            port.target
        ));
        let device = self.root.join(&folder);
        let block = device.join("block").join(name);
        must("the folders of a disk", std::fs::create_dir_all(block.join("holders")));
        for (file, text) in [("wwid", spec.wwid.as_str()), ("state", "running")] {
            write(&device, file, &format!("{text}\n"));
        }
        write(&device, "delete", "");
        must("vpd_pg83", std::fs::write(device.join("vpd_pg83"), &spec.page));
        must("the link to the device", symlink(format!("../../../{address}"), block.join("device")));
        let loop_device = self.make_device(&block, name, &spec.image);
        let place = folder.strip_prefix("sys").expect("below sys").join("block").join(name);
        must("the name of a disk", symlink(Path::new("..").join(place), self.root.join("sys/block").join(name)));
        state.disks.insert(name.to_owned(), PathTo { unit: unit.to_owned(), port, folder, loop_device });
        self.map_paths(state, unit);
    }

    /// The real device of a disk or map: its node, and what its folder says of it.
    fn make_device(&self, block: &Path, name: &str, image: &Path) -> PathBuf {
        let loop_device = must("a loop device", loopdev::attach(image, false));
        let number = must("its number", number_of(&loop_device));
        write(block, "dev", &format!("{}\n", numbers(number)));
        let real = PathBuf::from(format!("/sys/dev/block/{}", numbers(number)));
        for file in ["ro", "diskseq", "size"] {
            if let Ok(text) = std::fs::read_to_string(real.join(file)) {
                write(block, file, &text);
            }
        }
        must("a device node", make_node(&self.root.join("dev").join(name), number));
        let link = self.root.join("sys/dev/block").join(numbers(number));
        let _ = std::fs::remove_file(&link);
        must("a number's link", symlink(Path::new("../../block").join(name), link));
        loop_device
    }

    fn drop_device(&self, name: &str, loop_device: &Path) {
        if let Ok(number) = number_of(loop_device) {
            let _ = std::fs::remove_file(self.root.join("sys/dev/block").join(numbers(number)));
        }
        let _ = std::fs::remove_file(self.root.join("dev").join(name));
        let _ = loopdev::detach(loop_device);
    }

    /// Takes a disk away: its name is the first thing to go.
    pub(super) fn remove_disk(&self, state: &mut State, name: &str) {
        let Some(path) = state.disks.remove(name) else { return };
        let _ = std::fs::remove_file(self.root.join("sys/block").join(name));
        remove_tree(&self.root.join(&path.folder));
        for map in state.maps.keys() {
            let _ = std::fs::remove_file(self.map_folder(map).join("slaves").join(name));
        }
        self.drop_device(name, &path.loop_device);
    }

    fn map_folder(&self, name: &str) -> PathBuf {
        self.root.join("sys/devices/virtual/block").join(name)
    }

    /// What multipathd does when a unit has a path more.
    pub(super) fn map_paths(&self, state: &mut State, unit: &str) {
        let spec = state.units.get(unit).expect("a unit").clone();
        let Some(alias) = spec.alias else { return };
        let known = state.maps.iter().find(|(_, map)| map.unit == unit).map(|(name, _)| name.clone());
        let name = if let Some(name) = known {
            name
        } else {
            let name = (0..=state.maps.len())
                .map(|n| format!("dm-{n}"))
                .find(|name| !state.maps.contains_key(name))
                .expect("numbers");
            let folder = self.map_folder(&name);
            for part in ["slaves", "holders", "dm"] {
                must("the folders of a map", std::fs::create_dir_all(folder.join(part)));
            }
            write(&folder, "dm/name", &format!("{alias}\n"));
            let id = spec.wwid.strip_prefix("naa.").map_or_else(|| format!("1{}", spec.wwid), |id| format!("3{id}"));
            write(&folder, "dm/uuid", &format!("mpath-{id}\n"));
            let loop_device = self.make_device(&folder, &name, &spec.image);
            must("a map's name", symlink(format!("../{name}"), self.root.join("dev/mapper").join(&alias)));
            if let Some(registry) = &self.registry {
                must("the map's owner", std::fs::write(registry.join(&alias), self.root.to_string_lossy().as_bytes()));
            }
            let place = format!("../devices/virtual/block/{name}");
            must("the name of a map", symlink(place, self.root.join("sys/block").join(&name)));
            state.maps.insert(name.clone(), DmMap { unit: unit.to_owned(), alias, loop_device });
            name
        };
        for (disk, path) in state.disks.iter().filter(|(_, path)| path.unit == unit) {
            let block = self.root.join(&path.folder).join("block").join(disk);
            let _ = symlink(&block, self.map_folder(&name).join("slaves").join(disk));
            let _ = symlink(self.map_folder(&name), block.join("holders").join(&name));
        }
    }

    pub(super) fn remove_map(&self, state: &mut State, name: &str) {
        let Some(map) = state.maps.remove(name) else { return };
        let _ = std::fs::remove_file(self.root.join("sys/block").join(name));
        for (disk, path) in &state.disks {
            let _ =
                std::fs::remove_file(self.root.join(&path.folder).join("block").join(disk).join("holders").join(name));
        }
        remove_tree(&self.map_folder(name));
        let _ = std::fs::remove_file(self.root.join("dev/mapper").join(&map.alias));
        if let Some(registry) = &self.registry {
            let _ = std::fs::remove_file(registry.join(&map.alias));
        }
        self.drop_device(name, &map.loop_device);
    }
}

/// Removes a tree of plain files, nothing of which is mounted.
#[allow(clippy::disallowed_methods)]
pub(super) fn remove_tree(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
}
