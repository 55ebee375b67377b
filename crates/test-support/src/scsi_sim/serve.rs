//! What happens when somebody writes to a file of the simulation, or runs `multipath`.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use refloat_mount::{Device, Kernel, TableReader};

use super::{MULTIPATH, MultipathDoes, Port, Shared, State, files, must};

/// How often it is looked whether somebody wrote something.
const PAUSE: Duration = Duration::from_millis(4);

/// The folder of the `PATH` that [`MULTIPATH`] is in, if it is in one.
pub(super) fn folder_of_programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let (name, text) = MULTIPATH;
    let is_ours = |folder: &PathBuf| std::fs::read(folder.join(name)).is_ok_and(|found| found == text.as_bytes());
    std::env::split_paths(&path).find(is_ours)
}

/// The folder beside the programs that says whose a map is.
pub(super) fn registry(programs: &Path) -> PathBuf {
    let folder = programs.join("maps");
    must("the folder of maps", std::fs::create_dir_all(&folder));
    folder
}

impl Shared {
    /// Until the simulation ends.
    pub(super) fn serve(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            {
                let mut state = self.state();
                self.deletes(&mut state);
                self.scans(&mut state);
                self.asks(&mut state);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn deletes(&self, state: &mut State) {
        let written = |folder: &PathBuf| {
            std::fs::metadata(self.root.join(folder).join("delete")).is_ok_and(|file| file.len() > 0)
        };
        let names: Vec<String> =
            state.disks.iter().filter(|(_, path)| written(&path.folder)).map(|(name, _)| name.clone()).collect();
        for name in names {
            state.events.push(format!("delete {name}"));
            if state.ignores_deletes {
                let folder = self.root.join(&state.disks[&name].folder);
                let _ = std::fs::write(folder.join("delete"), "");
            } else {
                self.remove_disk(state, &name);
            }
        }
    }

    fn scans(&self, state: &mut State) {
        let mut hosts: Vec<u32> = state.ports.iter().map(|(port, _)| port.host).collect();
        hosts.dedup();
        for host in hosts {
            let file = self.root.join(format!("sys/class/scsi_host/host{host}/scan"));
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            if text.is_empty() {
                continue;
            }
            let _ = std::fs::write(&file, "");
            state.events.push(format!("scan host{host} {}", text.trim()));
            let mut parts = text.split_whitespace().map(|part| part.parse::<u64>().ok());
            let wanted = [(); 3].map(|()| parts.next().flatten());
            self.scan(state, host, wanted);
        }
    }

    /// Brings what the array shows at this host, of this channel, target and unit if they are told.
    pub(super) fn scan(&self, state: &mut State, host: u32, [channel, target, lun]: [Option<u64>; 3]) {
        let fits = |wanted: Option<u64>, is: u64| wanted.is_none_or(|wanted| wanted == is);
        let mut new: Vec<(String, Port)> = vec![];
        for (name, unit) in state.units.iter().filter(|(_, unit)| unit.exported && fits(lun, unit.number)) {
            let here = |port: &&Port| port.host == host && fits(target, port.target.into()) && fits(channel, 0);
            for port in unit.ports.iter().filter(here) {
                if !state.disks.values().any(|path| path.unit == *name && path.port == *port) {
                    new.push((name.clone(), *port));
                }
            }
        }
        for (unit, port) in new {
            let free = ('a'..='z').map(|letter| format!("sd{letter}")).find(|name| !state.disks.contains_key(name));
            self.add_disk(state, &free.expect("few disks"), &unit, port);
        }
    }

    fn asks(&self, state: &mut State) {
        let folder = self.root.join("ask");
        let Ok(entries) = std::fs::read_dir(&folder) else { return };
        for entry in entries.flatten() {
            let Ok(ask) = entry.file_name().into_string() else { continue };
            let Some(id) = ask.strip_suffix(".ask") else { continue };
            let Ok(alias) = std::fs::read_to_string(entry.path()) else { continue };
            if let Some(args) = alias.strip_prefix("iscsiadm\n") {
                let _ = std::fs::remove_file(entry.path());
                if let Some((code, said)) = self.iscsiadm(state, args) {
                    answer(&folder, id, &format!("{code}\n{said}"));
                }
                continue;
            }
            let alias = alias.trim().to_owned();
            state.events.push(format!("flush {alias}"));
            let _ = std::fs::remove_file(entry.path());
            let said = match state.multipath {
                MultipathDoes::Hang => continue,
                MultipathDoes::Garbage => &"\u{1b}[2J\u{7} \0".repeat(40_000),
                MultipathDoes::Lie => "",
                MultipathDoes::Refuse => "map in use",
                MultipathDoes::Well => self.flush(state, &alias),
            };
            answer(&folder, id, said);
        }
    }

    /// What is said of it; nothing if it was done.
    fn flush(&self, state: &mut State, alias: &str) -> &'static str {
        let Some((name, map)) = state.maps.iter().find(|(_, map)| map.alias == alias) else { return "no such map" };
        let name = name.clone();
        let Ok(number) = files::number_of(&map.loop_device) else { return "no such device" };
        let device = Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        match TableReader::new(Kernel::detect()).read() {
            Ok(table) if table.of_device(device).is_empty() => {}
            Ok(_) => return "map in use",
            Err(_) => return "cannot tell whether it is in use",
        }
        self.remove_map(state, &name);
        ""
    }
}

/// Lets who asked go on.
fn answer(folder: &std::path::Path, id: &str, said: &str) {
    let temporary = folder.join(format!("{id}.tmp"));
    let _ = std::fs::write(&temporary, said);
    let _ = std::fs::rename(temporary, folder.join(format!("{id}.answer")));
}
