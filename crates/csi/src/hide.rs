//! Keeps secrets and noise out of what a driver says.

use std::collections::BTreeSet;

use crate::{Access, Secrets, StringMap, VolumeCapability};

/// What stands where a secret stood.
const HIDDEN: &str = "***";

/// How much of a driver's text is kept, in characters: a few lines of a tool's output, not its whole log.
const MAX_TEXT: usize = 1000;

/// A line of a multi-line secret that is shorter than this is no secret by itself.
const MIN_LINE: usize = 6;

/// The key under which a pod's service account tokens come.
///
/// # Source
/// The CSI documentation of `tokenRequests` in a `CSIDriver` object.
pub(crate) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Words in a mount option's name that say that its value is a secret.
const SECRET_OPTIONS: &[&str] = &["pass", "secret", "token", "key", "cred"];

/// Values that must not be shown.
#[derive(Default)]
pub(crate) struct Hidden {
    /// Longest first, so that a secret that begins with another is hidden as a whole.
    values: Vec<String>,
}

impl Hidden {
    /// Everything in a call that may be secret: the secrets, tokens in the context, and mount options that look so.
    pub(crate) fn of(secrets: &Secrets, context: &StringMap, capability: Option<&VolumeCapability>) -> Self {
        let mut values = BTreeSet::new();
        for value in secrets.expose().values() {
            add(&mut values, value);
        }
        if let Some(tokens) = context.get(TOKENS) {
            add(&mut values, tokens);
            // JSON: each string that is long enough to be a token.
            for part in tokens.split('"').filter(|part| part.len() > 20) {
                add(&mut values, part);
            }
        }
        if let Some(VolumeCapability { access: Access::Mount { mount_flags, .. }, .. }) = capability {
            for (_, value) in secret_options(mount_flags) {
                add(&mut values, value);
            }
        }
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// A driver's text without secrets, in one line, shortened.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut clean = String::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if let Some(value) = self.values.iter().find(|value| rest.starts_with(value.as_str())) {
                clean.push_str(HIDDEN);
                rest = &rest[value.len()..];
            } else {
                // Control characters would let a driver write to an operator's terminal.
                clean.push(if next.is_control() { ' ' } else { next });
                rest = &rest[next.len_utf8()..];
            }
        }
        shortened(clean.trim())
    }
}

/// Mount options whose names say that their values are secret.
fn secret_options(options: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let is_secret = |(name, _): &(&str, &str)| {
        let name = name.to_ascii_lowercase();
        SECRET_OPTIONS.iter().any(|word| name.contains(word))
    };
    options.iter().flat_map(|option| option.split(',')).filter_map(|option| option.split_once('=')).filter(is_secret)
}

impl Secrets {
    /// The values of mount options whose names say that they are secret.
    pub fn of_options(options: &[String]) -> Self {
        Self::new(secret_options(options).map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A text of who was told these secrets, without them, in one line, shortened.
    pub fn hidden_in(&self, text: &str) -> String {
        Hidden::of(self, &StringMap::new(), None).clean(text)
    }

    /// Whether one of them is a part of this text, in any form in which it may be shown.
    pub fn are_in(&self, text: &str) -> bool {
        Hidden::of(self, &StringMap::new(), None).values.iter().any(|value| text.contains(value.as_str()))
    }
}

/// A value in each form in which a driver may show it: as it is, quoted, in base64, and its lines.
fn add(values: &mut BTreeSet<String>, value: &str) {
    let mut insert = |value: String| {
        if !value.is_empty() {
            values.insert(value);
        }
    };
    insert(value.to_owned());
    insert(value.trim().to_owned());
    insert(format!("{value:?}").trim_matches('"').to_owned());
    insert(base64(value.as_bytes()));
    if value.contains('\n') {
        for line in value.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE) {
            insert(line.to_owned());
        }
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(*chunk.get(i).unwrap_or(&0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63].into());
            } else {
                text.push('=');
            }
        }
    }
    text
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccessMode;

    fn hidden(values: &[&str]) -> Hidden {
        let map = values.iter().enumerate().map(|(i, v)| (i.to_string(), (*v).to_owned())).collect();
        Hidden::of(&Secrets::new(map), &StringMap::new(), None)
    }

    #[test]
    fn a_secret_is_hidden_in_each_form() {
        let hidden = hidden(&["top\"secret", "pem: line one\npem: line two\n", "top"]);
        for (text, clean) in [
            ("mount failed for top\"secret", "mount failed for ***"),
            (r#"got "top\"secret""#, r#"got "***""#),
            ("data dG9wInNlY3JldA== there", "data *** there"),
            ("topmost", "***most"),
            ("saw pem: line two.", "saw ***."),
            ("nothing of it", "nothing of it"),
        ] {
            assert_eq!(hidden.clean(text), clean, "{text}");
        }
    }

    #[test]
    fn stars_and_empty_values_do_no_harm() {
        assert_eq!(hidden(&["", "*", "**"]).clean("a***b"), "a******b");
        assert_eq!(hidden(&[""]).clean("as it was"), "as it was");
    }

    #[test]
    fn tokens_and_options_are_hidden() {
        let token = "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9";
        let context = StringMap::from([(TOKENS.into(), format!(r#"{{"aud":{{"token":"{token}"}}}}"#))]);
        let access = Access::Mount {
            fs_type: String::new(),
            mount_flags: vec!["ro".into(), "vers=3,Password=hunter2".into()],
            volume_mount_group: String::new(),
        };
        let capability = VolumeCapability { access, mode: AccessMode::SingleNodeWriter };
        let hidden = Hidden::of(&Secrets::default(), &context, Some(&capability));
        let text = format!("Bearer {token} refused, -o ro,vers=3,Password=hunter2");
        assert_eq!(hidden.clean(&text), "Bearer *** refused, -o ro,vers=3,Password=***");
    }

    #[test]
    fn text_is_one_short_line() {
        assert_eq!(Hidden::default().clean("a\n\u{1b}[31mb\r\n"), "a  [31mb");
        let long = Hidden::default().clean(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), MAX_TEXT + 1);
        // A secret at the place of the cut is gone before the cut.
        let secret = "s3cr3t".repeat(40);
        let long = hidden(&[&secret]).clean(&format!("{}{secret}", "x".repeat(MAX_TEXT - 10)));
        assert!(long.ends_with("x***"), "{long}");
    }

    #[test]
    fn base64_of_each_length() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
