use refloat_record::{ClaimRef, SpecName, VolumeMode};
use serde_json::{Value, json};

use super::*;
use crate::Object;

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> Object<T> {
    Object::new(Verbatim::from_value(value)).unwrap()
}

fn spec(source: SpecSource, read_only: bool, options: &[&str]) -> VolumeSpec {
    VolumeSpec {
        plugin: Nfs.name(),
        spec_name: SpecName::new("v").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only,
        mount_options: options.iter().map(|option| (*option).to_owned()).collect(),
        source,
        migrated: None,
    }
}

fn inline(nfs: &Value) -> SpecSource {
    SpecSource::Inline { volume: object(&json!({ "name": "v", "nfs": nfs })) }
}

fn persistent(nfs: &Value) -> SpecSource {
    SpecSource::Persistent {
        volume: object(&json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } })),
        persistent_volume: Box::new(object(&json!({ "metadata": { "name": "v" }, "spec": { "nfs": nfs } }))),
        claim: ClaimRef { namespace: "n".into(), name: "c".into(), uid: None },
    }
}

fn info(spec: &VolumeSpec) -> Info {
    Info::of(spec, checked(spec).unwrap())
}

#[test]
fn what_the_helper_is_told_and_what_the_table_will_show() {
    for (server, path, told, shown) in [
        ("files.example", "/exports/a", "files.example:/exports/a", "files.example:/exports/a"),
        ("10.0.0.1", "/", "10.0.0.1:/", "10.0.0.1:/"),
        ("10.0.0.1", "//", "10.0.0.1://", "10.0.0.1:/"),
        ("fd00::1", "/a", "[fd00::1]:/a", "[fd00::1]:/a"),
        ("[fd00::1]", "/a", "[fd00::1]:/a", "[fd00::1]:/a"),
        ("h", "/a b/", "h:/a b/", "h:/a b"),
    ] {
        let info = info(&spec(inline(&json!({ "server": server, "path": path })), false, &[]));
        assert_eq!((info.source().as_str(), info.announced().source.as_str()), (told, shown));
        assert_eq!(info.verbatim().parse::<Info>().unwrap(), info);
    }
}

#[test]
fn read_only_comes_last_whoever_says_so() {
    let nfs = json!({ "server": "h", "path": "/a" });
    let own = json!({ "server": "h", "path": "/a", "readOnly": true });
    let of = |source: SpecSource, read_only, options: &[&str]| info(&spec(source, read_only, options)).options;
    assert_eq!(of(persistent(&nfs), false, &["nfsvers=4.1", "rw,hard"]), ["nfsvers=4.1", "rw,hard"]);
    assert_eq!(of(persistent(&nfs), true, &["rw"]), ["rw", "ro"]);
    // `NFSVolumeSource.readOnly`: "will force the NFS export to be mounted with read-only permissions".
    assert_eq!(of(persistent(&own), false, &[]), ["ro"]);
    assert_eq!(of(inline(&own), true, &[]), ["ro"]);
    assert_eq!(of(inline(&nfs), false, &[]), Vec::<String>::new());
}

#[test]
fn what_is_wrong_is_named() {
    for (nfs, options, field, word) in [
        (json!({ "server": "", "path": "/" }), &[][..], "nfs.server", "missing"),
        (json!({ "server": "-o", "path": "/" }), &[], "nfs.server", "no name"),
        (json!({ "server": "a/b", "path": "/" }), &[], "nfs.server", "no name"),
        (json!({ "server": "a b", "path": "/" }), &[], "nfs.server", "no name"),
        (json!({ "server": "h", "path": "a" }), &[], "nfs.path", "not absolute"),
        (json!({ "server": "h", "path": "" }), &[], "nfs.path", "not absolute"),
        (json!({ "server": "h", "path": "/\u{0}" }), &[], "nfs.path", "NUL"),
        (json!({ "server": "h", "path": "/" }), &["hard,bg"], "mountOptions", "bg"),
        (json!({ "server": "h", "path": "/" }), &["a\0b"], "mountOptions", "NUL"),
    ] {
        for (source, prefix) in [(inline(&nfs), ""), (persistent(&nfs), "spec.")] {
            match Nfs.check(&spec(source, false, options)).unwrap_err() {
                SpecError::Field { field: its, why, .. } => {
                    assert_eq!(its, format!("{prefix}{field}"));
                    assert!(why.contains(word), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn servers_hold_up_their_own_volumes_alone() {
    let of = |server: &str| spec(inline(&json!({ "server": server, "path": "/a" })), false, &[]);
    assert_ne!(Nfs.lane(&of("a")), Nfs.lane(&of("b")));
    let recorded = info(&of("a")).verbatim();
    let recorded = Recorded { provider_info: Some(&recorded), ..Recorded::default() };
    assert_eq!(Nfs.recorded_lane(recorded), Nfs.lane(&of("a")));
    // No driver is asked, or waited for.
    assert_eq!((Nfs.driver(&of("a")), Nfs.recorded_driver(recorded)), (None, None));
}

/// The kubelet would call the folder's name the path, whatever is mounted there.
#[test]
fn a_mount_that_is_no_servers_is_not_claimed() {
    let path = std::path::Path::new("/r/pods/u/volumes/kubernetes.io~nfs/v");
    for (mounted, told) in [("nfs4 h:/a", true), ("tmpfs none", false), ("ext4 /dev/sda1", false)] {
        let lines = format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:60 / {} rw - {mounted} rw\n", path.display());
        let (table, bad) = refloat_mount::MountTable::from_mountinfo(lines.as_bytes());
        assert_eq!(bad, []);
        let memo = crate::LayoutMemo::default();
        let mode = VolumeMode::Filesystem;
        let found = FoundVolume { folder: "v", mode, path, table: &table, memo: &memo, foreign: None };
        let info = Nfs.from_layout(found).and_then(|rebuilt| rebuilt.provider_info?.parse().ok());
        let expected = Info { server: "h".into(), path: "/a".into(), options: vec![] };
        assert_eq!(info, told.then_some(expected), "{mounted}");
    }
}
