//! Names from the node as a person is shown them, in tables, sentences, messages and on the page.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with every character that cannot be seen, or that changes the direction of what follows, written as
/// `\u{…}`, so that a name cannot pretend to be another one.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if hidden(c) {
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Control characters, and the invisible ones of Unicode's general category Cf that names are forged with.
fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        assert_eq!(shown("a\u{202e}b\n\u{0}"), "a\\u{202e}b\\u{a}\\u{0}");
        assert!(matches!(shown("data-ü-日本"), Cow::Borrowed("data-ü-日本")));
    }
}
