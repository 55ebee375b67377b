use std::path::Component;

use proptest::prelude::*;

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
}

fn spec(text: &str) -> SpecName {
    SpecName::new(text).unwrap()
}

fn plugin(text: &str) -> PluginName {
    PluginName::new(text).unwrap()
}

fn pod(text: &str) -> PodRef {
    PodRef { uid: uid(text), namespace: "ns".into(), name: "name".into() }
}

/// The tables of section 1.1 to 1.3 of the kubelet's layout.
#[test]
fn paths_are_the_kubelets() {
    let u = uid("0a1b-2c");
    assert_eq!(pod_path(&u).as_str(), "pods/0a1b-2c");
    for (name, volume, path) in [
        ("kubernetes.io/empty-dir", "cache", "pods/0a1b-2c/volumes/kubernetes.io~empty-dir/cache"),
        ("kubernetes.io/local-volume", "pv-1", "pods/0a1b-2c/volumes/kubernetes.io~local-volume/pv-1"),
        ("vendor/driver", "v", "pods/0a1b-2c/volumes/vendor~driver/v"),
        // Nothing escapes the tilde itself, and the spec name is used as it is.
        ("a/b/c", "x~y", "pods/0a1b-2c/volumes/a~b~c/x~y"),
    ] {
        assert_eq!(volume_path(&u, &plugin(name), &spec(volume)).as_str(), path);
    }
    assert_eq!(sub_path(&u, &spec("v"), "main", 3).unwrap().as_str(), "pods/0a1b-2c/volume-subpaths/v/main/3");
    assert_eq!(
        marker_dir(&u, "wrapped_conf").unwrap().as_str(),
        "pods/0a1b-2c/plugins/kubernetes.io~empty-dir/wrapped_conf"
    );
}

/// The table of section 2.2: unique volume names.
#[test]
fn unique_names_are_the_kubelets() {
    for (name, volume, unique) in [
        ("kubernetes.io/empty-dir", "cache", "kubernetes.io/empty-dir/u1-cache"),
        ("kubernetes.io/configmap", "conf", "kubernetes.io/configmap/u1-conf"),
        ("kubernetes.io/secret", "cred", "kubernetes.io/secret/u1-cred"),
        ("kubernetes.io/downward-api", "info", "kubernetes.io/downward-api/u1-info"),
        ("kubernetes.io/projected", "token", "kubernetes.io/projected/u1-token"),
        ("kubernetes.io/host-path", "logs", "kubernetes.io/host-path/u1-logs"),
        ("kubernetes.io/nfs", "pv-nfs", "kubernetes.io/nfs/u1-pv-nfs"),
        ("kubernetes.io/csi", "inline", "kubernetes.io/csi/u1-inline"),
        ("vendor/driver", "v", "vendor/driver/u1-v"),
    ] {
        assert_eq!(unique_name_of_pod(&pod("u1"), &plugin(name), &spec(volume)).as_str(), unique);
    }
    for (name, volume, unique) in [
        ("kubernetes.io/local-volume", "pv-1", "kubernetes.io/local-volume/pv-1"),
        ("kubernetes.io/csi", "ebs.csi.aws.com^vol-0abc", "kubernetes.io/csi/ebs.csi.aws.com^vol-0abc"),
        ("kubernetes.io/iscsi", "10.0.0.1:3260:iqn.x:0", "kubernetes.io/iscsi/10.0.0.1:3260:iqn.x:0"),
        ("kubernetes.io/aws-ebs", "aws://zone/vol-1", "kubernetes.io/aws-ebs/aws://zone/vol-1"),
    ] {
        assert_eq!(unique_name_of_device(&plugin(name), volume).unwrap().as_str(), unique);
    }
}

#[test]
fn names_that_would_leave_their_folder_are_refused() {
    for bad in ["", ".", "..", "a/b", "../x", "/x", "a\0b"] {
        assert!(sub_path(&uid("u"), &spec("v"), bad, 0).is_err(), "{bad:?}");
        assert!(marker_dir(&uid("u"), bad).is_err(), "{bad:?}");
        assert!(PodUid::new(bad).is_err() && SpecName::new(bad).is_err(), "{bad:?}");
    }
    assert!(marker_dir(&uid("u"), &"x".repeat(256)).is_err());
}

proptest! {
    /// Whatever the names are, the path stays in the pod's folder, has the same number of elements, and tells them.
    #[test]
    fn a_volumes_path_tells_its_names(u in "[^/\0]{1,40}", name in "[a-z.]{1,12}/[a-z-]{1,12}", volume in "[^/\0]{1,40}") {
        prop_assume!(![".", ".."].contains(&u.as_str()) && ![".", ".."].contains(&volume.as_str()));
        let path = volume_path(&uid(&u), &plugin(&name), &spec(&volume));
        let elements: Vec<_> = path.as_path().components().collect();
        prop_assert!(elements.iter().all(|c| matches!(c, Component::Normal(_))));
        let [_, in_uid, _, in_plugin, in_volume] = elements[..] else { panic!("{path}") };
        prop_assert_eq!(in_uid.as_os_str().to_str(), Some(u.as_str()));
        prop_assert_eq!(in_volume.as_os_str().to_str(), Some(volume.as_str()));
        prop_assert_eq!(PluginName::from_escaped(in_plugin.as_os_str().to_str().unwrap()).unwrap(), plugin(&name));
        prop_assert!(path.as_path().starts_with(pod_path(&uid(&u)).as_path()));
    }

    /// Escaping leaves no slash, and comes back for every name without a tilde.
    #[test]
    fn escaping_comes_back(name in "[^~\0]{1,60}") {
        let name = plugin(&name);
        prop_assert!(!name.escaped().contains('/'));
        prop_assert_eq!(PluginName::from_escaped(&name.escaped()).unwrap(), name);
    }

    /// A container's name can be anything in a record; the path is refused or has it as one element.
    #[test]
    fn sub_paths_stay_in_the_pods_folder(container in ".{0,40}", index in any::<u32>()) {
        if let Ok(path) = sub_path(&uid("u"), &spec("v"), &container, index) {
            prop_assert!(path.as_path().starts_with("pods/u/volume-subpaths/v"));
            prop_assert!(path.as_path().components().all(|c| matches!(c, Component::Normal(_))));
            prop_assert_eq!(path.as_path().components().count(), 6);
        }
    }
}
