//! Whether what is there is what is to be there.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::tree::{Node, Tree};
use super::{DATA, Writer};
use crate::{PayloadFile, VolumeError, beneath};

impl Writer<'_, '_> {
    /// Whether the folder holds exactly this, bytes, modes and owners included. What cannot be read is not the same;
    /// only a shortage of this process's own is an error.
    pub(super) fn is_same(&self, folder: &OwnedFd, tree: &Tree<'_>, depth: usize) -> Result<bool, VolumeError> {
        let same = self.compare(folder, tree, depth);
        match same {
            Ok(same) => Ok(same),
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(self.error("compare the content of", DATA, e)),
            Err(_) => Ok(false),
        }
    }

    fn compare(&self, folder: &OwnedFd, tree: &Tree<'_>, depth: usize) -> rustix::io::Result<bool> {
        if depth > beneath::MAX_DEPTH {
            return Ok(false);
        }
        let stat = rustix::fs::fstat(folder)?;
        if !self.is_owned(&stat) || beneath::bits(&stat) != self.folder_mode() {
            return Ok(false);
        }
        let names = beneath::list(folder)?;
        if !names.iter().map(|(name, _)| name).eq(tree.keys()) {
            return Ok(false);
        }
        for (name, node) in tree {
            let same = match node {
                Node::Folder(inner) => self.compare(&beneath::open_dir(folder, name)?, inner, depth + 1)?,
                Node::File(file) => self.compare_file(beneath::open_file(folder, name)?, file)?,
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn compare_file(&self, fd: OwnedFd, file: &PayloadFile) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstat(&fd)?;
        if beneath::kind(&stat) != FileType::RegularFile
            || !self.is_owned(&stat)
            || beneath::bits(&stat) != self.file_mode(file.mode)
            || u64::try_from(stat.st_size) != Ok(file.data.len() as u64)
        {
            return Ok(false);
        }
        let mut reader = File::from(fd);
        let (mut buffer, mut rest) = ([0; 16 << 10], &*file.data);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(rest.is_empty()),
                Ok(n) => match rest.split_at_checked(n) {
                    Some((part, after)) if *part == buffer[..n] => rest = after,
                    _ => return Ok(false),
                },
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            }
        }
    }
}
