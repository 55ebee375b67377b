//! CHAP: what the Secret of a volume holds goes into open-iscsi's record of the portal.
//!
//! `iscsiadm` takes a value as an argument only, which every program of the node can see in the list of processes. So the lines
//! are put into the record's own file, which root alone may read; the record was made by `iscsiadm` right before.
//!
//! # Source
//! `usr/idbm.c` of open-iscsi: `nodes/<target>/<address>,<port>,<group>/<interface>`,
//! `send_targets/<address>,<port>/st_config`; lines of the form `name = value`, the last one counts. A name without a comma
//! beside these is none of its records.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Secret;
use refloat_csi::{Secrets, StringMap};

use super::target::Portal;
use crate::{ContentError, Host, Problem, VolumeError};

/// The end of each name of what can be set.
const FIELDS: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// What the fields of a session are called, and those of a discovery.
const SESSION: &str = "node.session.auth";
const DISCOVERY: &str = "discovery.sendtargets.auth";

/// What a Secret has of this.
///
/// # Source
/// `chapSt` and `chapSess` of `pkg/volume/iscsi`.
pub(super) fn of_secret(secret: &Secret, shown: &str) -> Result<Secrets, ContentError> {
    let mut values = StringMap::new();
    for (key, value) in secret.data.iter().flatten() {
        let is_ours = [SESSION, DISCOVERY].iter().any(|of| {
            key.strip_prefix(of).and_then(|rest| rest.strip_prefix('.')).is_some_and(|field| FIELDS.contains(&field))
        });
        if !is_ours {
            continue;
        }
        let text = std::str::from_utf8(&value.0).ok().filter(|text| is_plain(text)).ok_or_else(|| {
            ContentError(Problem::new(
                "SecretNotText",
                format!("the key {key:?} of {shown} cannot be a line of open-iscsi's settings"),
                "Give it a value of one line of text, without blanks at its ends.",
            ))
        })?;
        values.insert(key.clone(), text.to_owned());
    }
    Ok(Secrets::new(values))
}

/// Whether it is read back as it was written.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control) && text.len() < 256
}

/// The lines for a session, or for a discovery.
fn lines(secrets: &Secrets, of: &str) -> Option<Vec<(String, String)>> {
    let field = |name: &&str| Some((format!("{of}.{name}"), secrets.expose().get(&format!("{of}.{name}"))?.clone()));
    let lines: Vec<_> = FIELDS.iter().filter_map(field).collect();
    let method = (format!("{of}.authmethod"), "CHAP".to_owned());
    (!lines.is_empty()).then(|| [vec![method], lines].concat())
}

fn no_keys(of: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "ChapMissing",
        format!("the volume's Secret has none of the keys {of}.username and {of}.password"),
        "Add them to the Secret, or take chapAuthSession or chapAuthDiscovery out of the volume.",
    ))
}

/// Puts what the target wants of a session into the record of a portal (`10.0.0.5:3260,1`).
pub(super) fn for_session(
    host: &Host,
    secrets: &Secrets,
    iqn: &str,
    place: &str,
    interface: &str,
) -> Result<(), VolumeError> {
    let lines = lines(secrets, SESSION).ok_or_else(|| no_keys(SESSION))?;
    let unknown = || not_found(Path::new(iqn));
    let (portal, group) = place.rsplit_once(',').ok_or_else(unknown)?;
    let portal = Portal::parse(portal).ok_or_else(unknown)?;
    let folder = Path::new("nodes").join(iqn);
    let old = folder.join(format!("{},{}", portal.host, portal.port));
    let new = folder.join(format!("{},{},{group}", portal.host, portal.port)).join(interface);
    // Beside the portals' names, each of which has a comma.
    set(host, &[new, old], &folder, &lines)
}

/// The same for a discovery at a portal.
pub(super) fn for_discovery(host: &Host, secrets: &Secrets, portal: &Portal) -> Result<(), VolumeError> {
    let lines = lines(secrets, DISCOVERY).ok_or_else(|| no_keys(DISCOVERY))?;
    let folder = Path::new("send_targets").join(format!("{},{}", portal.host, portal.port));
    set(host, &[folder.join("st_config")], &folder, &lines)
}

fn not_found(file: &Path) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "ChapNotSet",
        format!(
            "the record {} of open-iscsi was made and is in none of the folders that it is looked for in",
            file.display()
        ),
        "Let its database be at /etc/iscsi or /var/lib/iscsi for this program too. A secret is not given to iscsiadm as an \
         argument, where every program could see it.",
    ))
}

/// Gives each temporary file its own name.
static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Sets lines in the first of these files that is there, below one of the places where the database may be.
fn set(host: &Host, files: &[PathBuf], beside: &Path, lines: &[(String, String)]) -> Result<(), VolumeError> {
    for place in host.sys.iscsi_places() {
        for file in files {
            let path = place.join(file);
            let io = |doing| {
                let path = path.clone();
                move |source| VolumeError::Io { doing, path, source }
            };
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if is_none(&error) => continue,
                Err(error) => return Err(io("read")(error)),
            };
            let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let temporary = place.join(beside).join(format!(".refloat-{}-{count}", std::process::id()));
            return write(&path, &temporary, &with(&text, lines)).map_err(io("write the settings for the login to"));
        }
    }
    Err(not_found(&files[0]))
}

fn is_none(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    [NotFound, NotADirectory, IsADirectory].contains(&error.kind())
}

/// The text with these lines and none that say something else.
fn with(text: &str, lines: &[(String, String)]) -> String {
    let is_set = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default().trim();
        // Beside a password stands its length.
        lines.iter().any(|(set, _)| name == set || name.strip_suffix("_length") == Some(set))
    };
    let mut all = String::new();
    let mut added = false;
    let mut add = |all: &mut String| {
        if !std::mem::replace(&mut added, true) {
            for (name, value) in lines {
                let _ = writeln!(all, "{name} = {value}");
            }
        }
    };
    for line in text.lines().filter(|line| !is_set(line)) {
        // It is the last line of a record.
        if line.trim() == "# END RECORD" {
            add(&mut all);
        }
        all.push_str(line);
        all.push('\n');
    }
    add(&mut all);
    all
}

fn write(path: &Path, temporary: &Path, text: &str) -> std::io::Result<()> {
    let _ = std::fs::remove_file(temporary);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_the_place_of_others() {
        let lines = [("a.password".to_owned(), "new".to_owned()), ("a.username".to_owned(), "u".to_owned())];
        for (before, after) in [
            ("", "a.password = new\na.username = u\n"),
            (
                "# BEGIN RECORD 2\nb = 1\na.password = old\na.password_length = 3\na.password_in = x\n# END RECORD\n",
                "# BEGIN RECORD 2\nb = 1\na.password_in = x\na.password = new\na.username = u\n# END RECORD\n",
            ),
        ] {
            assert_eq!(with(before, &lines), after);
            assert_eq!(with(after, &lines), after);
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for text in ["", " a", "a ", "a\nnode.startup = automatic", "\u{7}"] {
            assert!(!is_plain(text), "{text:?}");
        }
        assert!(is_plain("s3cret with blanks = and more"));
    }
}
