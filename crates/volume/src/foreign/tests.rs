use serde_json::json;

use super::*;

fn says(form: ForeignForm, text: &str) -> Result<ForeignSays, String> {
    ForeignRecord::parse("plugins/x/v~pv.json".into(), form, text.as_bytes()).says
}

/// As v1.36 writes it, with what it never should.
const ISCSI: &str = r#"{"VolName":"pv","Portals":["10.0.0.5:3260","10.0.0.6:3260"],"Iqn":"iqn.2001-04.e:d","Lun":"3",
"InitIface":"default","Iface":"10.0.0.5:3260:pv","InitiatorName":"iqn.i","MetricsProvider":null,
"Secret":{"node.session.auth.password":"hunter2"},"chap_secret":"hunter2"}"#;

#[test]
fn an_iscsi_file_tells_its_fields_and_no_secret() {
    let told = says(ForeignForm::Iscsi, ISCSI).unwrap();
    assert_eq!(told.name.as_deref(), Some("pv"));
    let fields = json!({ "targetPortal": "10.0.0.5:3260", "portals": ["10.0.0.6:3260"], "iqn": "iqn.2001-04.e:d", "lun": 3,
        "iscsiInterface": "default", "initiatorName": "iqn.i" });
    assert_eq!(Value::Object(told.fields.clone()), fields);
    assert!(!format!("{told:?} {told}").contains("hunter2"));
}

#[test]
fn older_iscsi_files_tell_less() {
    let old = r#"{"VolName":"pv","Portals":["h:3260"],"Iqn":"iqn.e","Iface":"default"}"#;
    let told = says(ForeignForm::Iscsi, old).unwrap();
    let fields = json!({ "targetPortal": "h:3260", "portals": null, "iqn": "iqn.e", "iscsiInterface": "default" });
    assert_eq!(Value::Object(told.fields), fields);
    assert_eq!(says(ForeignForm::Iscsi, r#"{"VolName":"","Portals":null,"Iqn":""}"#), Err("it names no target".into()));
    let no_number = r#"{"Iqn":"iqn.e","Lun":"hunter2"}"#;
    assert_eq!(says(ForeignForm::Iscsi, no_number), Err("its LUN is no number".into()));
}

#[test]
fn an_rbd_file_tells_its_fields_and_no_secret() {
    for id in ["Id", "ID"] {
        let text = format!(
            r#"{{"Pool":"p","Image":"i","ReadOnly":false,"Mon":["10.0.0.1:6789"],"{id}":"admin","Keyring":"/etc/k","Secret":"hunter2"}}"#
        );
        let told = says(ForeignForm::Rbd, &text).unwrap();
        let fields = json!({ "pool": "p", "image": "i", "monitors": ["10.0.0.1:6789"], "user": "admin", "keyring": "/etc/k",
            "readOnly": null });
        assert_eq!(Value::Object(told.fields.clone()), fields);
        assert!(!format!("{told:?}").contains("hunter2"));
    }
}

#[test]
fn a_spec_file_may_be_the_whole_object_or_its_spec() {
    let spec = r#"{"capacity":{"storage":"1Gi"},"nfs":{"server":"s","path":"/p"},"password":"hunter2"}"#;
    let whole = format!(r#"{{"apiVersion":"v1","kind":"PersistentVolume","metadata":{{"name":"pv"}},"spec":{spec}}}"#);
    for (text, name) in [(spec, None), (whole.as_str(), Some("pv"))] {
        let told = says(ForeignForm::PersistentVolume, text).unwrap();
        assert_eq!((told.name.as_deref(), told.source.as_str()), (name, "nfs"));
        assert_eq!(Value::Object(told.fields), json!({ "server": "s", "path": "/p" }));
        assert_eq!(Value::Object(told.of_persistent_volume), json!({ "capacity": { "storage": "1Gi" } }));
    }
    for (text, name) in [
        (r#"{"gcePersistentDisk":{"pdName":"d"}}"#, None),
        (r#"{"name":"v","gcePersistentDisk":{"pdName":"d","x":"hunter2"}}"#, Some("v")),
    ] {
        let told = says(ForeignForm::VolumeSource, text).unwrap();
        assert_eq!((told.name.as_deref(), told.source.as_str()), (name, "gcePersistentDisk"));
        assert_eq!(Value::Object(told.fields), json!({ "pdName": "d" }));
    }
}

#[test]
fn what_cannot_be_used_is_said_without_its_text() {
    for (text, why) in [
        ("", "it is empty"),
        ("\0\0\0", "it holds NUL bytes"),
        (r#"{"VolName":"hunter2"#, "it is torn"),
        ("[]", "it is no JSON object"),
        ("7", "it is no JSON object"),
        ("hunter2", "it is no JSON"),
    ] {
        for form in [ForeignForm::Iscsi, ForeignForm::Rbd, ForeignForm::PersistentVolume, ForeignForm::VolumeSource] {
            let refused = says(form, text).unwrap_err();
            assert!(refused.starts_with(why) && !refused.contains("hunter2"), "{form:?}: {text:?}: {refused}");
        }
    }
    for (form, text, why) in [
        (ForeignForm::Rbd, "{}", "it names no image"),
        (ForeignForm::PersistentVolume, "{}", "it has no source"),
        (
            ForeignForm::PersistentVolume,
            r#"{"nfs":{"server":"s","path":"p"},"local":{"path":"/p"}}"#,
            "it has two sources",
        ),
        (ForeignForm::PersistentVolume, r#"{"nfs":"hunter2"}"#, "its spec is no PersistentVolume's"),
        (ForeignForm::VolumeSource, r#"{"name":"v"}"#, "it has no source"),
        (ForeignForm::VolumeSource, r#"{"nfs":7}"#, "it is no volume of a pod"),
    ] {
        assert_eq!(says(form, text), Err(why.to_owned()), "{text}");
    }
}

/// A file is written in place, so that a crash leaves any first part of it.
#[test]
fn every_cut_of_a_file_is_told() {
    for end in 1..ISCSI.len() {
        assert_eq!(says(ForeignForm::Iscsi, &ISCSI[..end]), Err("it is torn".into()), "{end}");
    }
}

#[test]
fn a_files_name_names_its_volume() {
    for (name, found) in [
        ("pv-1~pv.json", Some((ForeignForm::PersistentVolume, "pv-1"))),
        ("data~vs.json", Some((ForeignForm::VolumeSource, "data"))),
        ("~pv.json", None),
        ("pv.json", None),
        ("iscsi.json", None),
    ] {
        assert_eq!(ForeignForm::of_name(name), found, "{name}");
    }
}

#[test]
fn no_symlink_and_no_pipe_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let dir = std::fs::File::open(folder.path()).unwrap();
    let look = |name: &str| look_for(&dir, Path::new(name), name.into(), ForeignForm::Iscsi).map(|record| record.says);
    assert_eq!(look("iscsi.json"), None);
    std::fs::write(folder.path().join("real"), ISCSI).unwrap();
    assert!(look("real").unwrap().is_ok());
    std::os::unix::fs::symlink("real", folder.path().join("iscsi.json")).unwrap();
    assert!(look("iscsi.json").unwrap().unwrap_err().contains("symlink"));
    rustix::fs::mknodat(&dir, "pipe", rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    assert_eq!(look("pipe").unwrap().unwrap_err(), "it is no file");
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(look("folder").unwrap().unwrap_err(), "it is no file");
    std::fs::File::create(folder.path().join("large")).unwrap().set_len((1 << 20) + 1).unwrap();
    assert!(look("large").unwrap().unwrap_err().contains("more than"));
}
