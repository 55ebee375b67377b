//! Names from the node as a page shows them.

use std::borrow::Cow;
use std::fmt::Write;

use maud::{Markup, html};

/// The text with every character that cannot be seen, or that changes the direction of what follows, written as
/// `\u{…}`, so that a name cannot pretend to be another one. Escaping for HTML is `maud`'s work.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
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

/// Our own sentences: what stands between backticks is a command or a name.
pub(super) fn prose(text: &str) -> Markup {
    let text = shown(text);
    let paired = text.matches('`').count().is_multiple_of(2);
    html! {
        @if paired {
            @for (i, part) in text.split('`').enumerate() {
                @if i % 2 == 1 { code { (part) } } @else { (part) }
            }
        } @else { (text) }
    }
}

/// Control characters, and the invisible ones of Unicode's general category Cf that names are forged with.
fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A number with what it counts, with thousands set apart.
pub(super) fn count(number: usize, what: &str) -> String {
    format!("{} {what}", thousands(number))
}

/// As [`count`], of things that have a plural.
pub(super) fn plural(number: usize, what: &str) -> String {
    count(number, &format!("{what}{}", if number == 1 { "" } else { "s" }))
}

/// A number with thousands set apart.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        assert_eq!(shown("a\u{202e}b\n\u{0}"), "a\\u{202e}b\\u{a}\\u{0}");
        assert!(matches!(shown("data-ü-日本"), Cow::Borrowed("data-ü-日本")));
    }

    #[test]
    fn prose_has_code() {
        assert_eq!(prose("run `a <b>` now").into_string(), "run <code>a &lt;b&gt;</code> now");
        assert_eq!(prose("a ` b").into_string(), "a ` b");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(count(0, "a"), "0 a");
        assert_eq!(plural(999, "pod"), "999 pods");
        assert_eq!(plural(1, "pod"), "1 pod");
        assert_eq!(count(1_234_567, "a"), "1,234,567 a");
    }
}
