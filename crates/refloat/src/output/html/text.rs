//! Sentences and numbers as a page shows them.

use maud::{Markup, html};

use crate::output::shown::shown;

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
