//! What spoke for a conclusion, in words.

/// Pieces of evidence, one sentence each. They are put into words only for who asked for them
/// ([`super::reconstruct_explained`]): on a large node the words cost more than the conclusions.
#[derive(Debug)]
pub(super) struct Notes {
    texts: Vec<String>,
    kept: bool,
}

impl Notes {
    pub(super) fn new(kept: bool) -> Self {
        Self { texts: vec![], kept }
    }

    /// Takes one down.
    pub(super) fn add(&mut self, text: impl FnOnce() -> String) {
        if self.kept {
            self.texts.push(text());
        }
    }

    pub(super) fn into_texts(self) -> Vec<String> {
        self.texts
    }
}
