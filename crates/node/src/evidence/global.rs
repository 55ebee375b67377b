//! Folders for global mounts of the plugins that have them elsewhere than at `plugins/kubernetes.io/<plugin>/mounts/<name>`.
//!
//! # Source
//! As [`refloat_volume::layout::global_path`], which says what each of these paths is.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use refloat_volume::{ForeignForm, layout};

use super::walk::{Entry, Walk, is_dir};

/// How deep the folders of a disk whose name is a path may lie.
const DEPTH: usize = 8;

impl Walk<'_> {
    /// What is below `plugins/kubernetes.io/<plugin>`; `path` is that.
    pub(super) fn global_folders_of(&mut self, at: impl AsFd, plugin: &Entry, path: &Path, found: &mut Vec<PathBuf>) {
        let Some((dir, entries)) = self.list(at, &plugin.name, path) else { return };
        // The one file that this plugin keeps in each of its global folders.
        let form = match plugin.name.to_bytes() {
            b"iscsi" => Some(ForeignForm::Iscsi),
            b"rbd" => Some(ForeignForm::Rbd),
            _ => None,
        };
        for entry in &entries {
            let below = path.join(entry.path());
            if !is_dir(&dir, entry) {
                self.record(&dir, entry, path);
                continue;
            }
            match (plugin.name.to_bytes(), entry.name.to_bytes()) {
                (_, b"volumeDevices") => self.map_folders(&dir, entry, &below, DEPTH, form, found),
                (b"fc", _) => found.push(below),
                (b"iscsi", name) if !name.starts_with(b"iface-") => {}
                (b"vsphere-volume", b"mounts") => self.disks(&dir, entry, &below, DEPTH, found),
                (b"aws-ebs", b"mounts") => self.aws(&dir, entry, &below, found),
                (b"flexvolume", _) => self.flex(&dir, entry, &below, 2, found),
                (b"iscsi", _) | (b"rbd", b"rbd") | (_, b"mounts") => self.children(&dir, entry, &below, form, found),
                _ => {}
            }
        }
    }

    fn children(
        &mut self,
        at: impl AsFd,
        folder: &Entry,
        path: &Path,
        form: Option<ForeignForm>,
        found: &mut Vec<PathBuf>,
    ) {
        let Some((dir, entries)) = self.list(at, &folder.name, path) else { return };
        for entry in &entries {
            let path = path.join(entry.path());
            if let Some(form) = form {
                self.record_in(&dir, entry.path(), &path, form);
            }
            found.push(path);
        }
    }

    /// The global map folders below `volumeDevices`, whose names may be paths, and what is in them.
    fn map_folders(
        &mut self,
        at: impl AsFd,
        folder: &Entry,
        path: &Path,
        depth: usize,
        form: Option<ForeignForm>,
        found: &mut Vec<PathBuf>,
    ) {
        let Some((dir, entries)) = self.list(at, &folder.name, path) else { return };
        if path.to_str().is_some_and(|path| layout::global_path(path).is_some()) {
            self.maps.extend(entries.iter().map(|entry| path.join(entry.path())));
            if let Some(form) = form {
                self.record_in(&dir, Path::new(""), path, form);
            }
            found.push(path.to_path_buf());
        } else if depth > 0 {
            for entry in entries.iter().filter(|entry| is_dir(&dir, entry)) {
                self.map_folders(&dir, entry, &path.join(entry.path()), depth - 1, form, found);
            }
        }
    }

    /// `<volume>`, `aws/<volume>`, `aws/<zone>/<volume>`: no zone is called as a volume.
    fn aws(&mut self, at: impl AsFd, folder: &Entry, path: &Path, found: &mut Vec<PathBuf>) {
        let Some((dir, entries)) = self.list(at, &folder.name, path) else { return };
        for entry in &entries {
            let path = path.join(entry.path());
            if entry.name.as_c_str() != c"aws" {
                found.push(path);
                continue;
            }
            let Some((dir, zones)) = self.list(&dir, &entry.name, &path) else { continue };
            for zone in &zones {
                let path = path.join(zone.path());
                if zone.name.to_bytes().starts_with(b"vol-") {
                    found.push(path);
                } else {
                    self.children(&dir, zone, &path, None, found);
                }
            }
        }
    }

    /// `[<datastore>] <folders>/<disk>.vmdk`
    fn disks(&mut self, at: impl AsFd, folder: &Entry, path: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        let Some((dir, entries)) = self.list(at, &folder.name, path) else { return };
        for entry in entries.iter().filter(|entry| is_dir(&dir, entry)) {
            let path = path.join(entry.path());
            if entry.name.to_bytes().ends_with(b".vmdk") {
                found.push(path);
            } else if depth > 0 {
                self.disks(&dir, entry, &path, depth - 1, found);
            }
        }
    }

    /// `<vendor>/<driver>/mounts/<volume>`, or `<driver>/mounts/<volume>`; `levels` is how many more there may be above
    /// `mounts`.
    fn flex(&mut self, at: impl AsFd, folder: &Entry, path: &Path, levels: usize, found: &mut Vec<PathBuf>) {
        let Some((dir, entries)) = self.list(at, &folder.name, path) else { return };
        for entry in &entries {
            if !is_dir(&dir, entry) {
                self.record(&dir, entry, path);
                continue;
            }
            let path = path.join(entry.path());
            if entry.name.as_c_str() == c"mounts" {
                self.children(&dir, entry, &path, None, found);
            } else if levels > 1 {
                self.flex(&dir, entry, &path, levels - 1, found);
            }
        }
    }
}
