//! A payload as a tree of names.

use std::collections::BTreeMap;
use std::ffi::CString;

use crate::{Payload, PayloadFile, VolumeError};

/// A payload as folders.
pub(super) enum Node<'p> {
    File(&'p PayloadFile),
    Folder(Tree<'p>),
}

pub(super) type Tree<'p> = BTreeMap<CString, Node<'p>>;

/// The payload's folders, if its paths can be used.
pub(super) fn tree_of(payload: &Payload) -> Result<Tree<'_>, VolumeError> {
    payload.check().map_err(|error| VolumeError::Refused(error.0))?;
    let mut tree = Tree::new();
    for (path, file) in &payload.files {
        let path = crate::payload::clean_path(path).map_err(|error| VolumeError::Refused(error.0))?;
        let mut folder = &mut tree;
        let mut elements = path.split('/').peekable();
        while let Some(element) = elements.next() {
            let element = CString::new(element).expect("checked: no NUL in the path");
            if elements.peek().is_none() {
                folder.insert(element, Node::File(file));
                break;
            }
            match folder.entry(element).or_insert_with(|| Node::Folder(Tree::new())) {
                Node::Folder(inner) => folder = inner,
                Node::File(_) => unreachable!("checked: no path is a folder of another"),
            }
        }
    }
    Ok(tree)
}
