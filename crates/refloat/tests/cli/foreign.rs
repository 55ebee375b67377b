//! A tree that a kubelet made, without a record: every plugin, damage, and what a scan does to it, which is nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::node::Node;
use crate::{Test, Verdict, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("every_plugin_is_told_by_paths_and_mounts", every_plugin),
    ("devices_without_pods_are_shown", devices_alone),
    ("a_damaged_tree_loses_no_other_volume", damaged),
    ("a_scan_writes_nothing_and_opens_nothing_mounted", traced),
];

const POD: &str = "9c1914c1-77f4-4a8b-8527-c4e010587966";

/// A volume of a tree, and what is to be told of it.
struct Case {
    plugin: &'static str,
    folder: &'static str,
    /// Its global mount, below `plugins/`.
    global: Option<&'static str>,
    /// What the mount table has as its source; empty if the volume is a plain folder with a marker.
    source: &'static str,
    /// The volume as it is to be told, with its name if that is not the folder's.
    told: Value,
    /// What comes behind the plugin's name in the unique name; of the pod and the name if it is empty.
    unique: &'static str,
}

/// A unique name that nobody can tell.
const UNKNOWN: &str = "?";

impl Case {
    fn name(&self) -> &str {
        self.told["name"].as_str().unwrap_or(self.folder)
    }

    fn unique_name(&self) -> Value {
        match self.unique {
            UNKNOWN => Value::Null,
            "" => format!("{}/{POD}-{}", self.plugin, self.name()).into(),
            unique => format!("{}/{unique}", self.plugin).into(),
        }
    }

    /// The unique name of its device, which is known by the global path alone.
    fn device_name(&self) -> Value {
        if self.unique.is_empty() { Value::Null } else { self.unique_name() }
    }

    fn is_mount(&self) -> bool {
        !self.source.is_empty()
    }
}

#[rustfmt::skip] // a table
fn cases() -> Vec<Case> {
    let case = |plugin, folder, global, source, told, unique| Case { plugin, folder, global, source, told, unique };
    vec![
        case("kubernetes.io/nfs", "data", None, "srv:/exports/a",
            json!({ "nfs": { "server": "srv", "path": "/exports/a" } }), ""),
        case("kubernetes.io/nfs", "six", None, "[fd00::1]:/e", json!({ "nfs": { "server": "fd00::1", "path": "/e" } }), ""),
        case("kubernetes.io/iscsi", "disk", Some("kubernetes.io/iscsi/iface-default/san-1.x:3260-iqn.2001-04.e:d-lun-x-lun-3"), "dev",
            json!({ "iscsi": { "targetPortal": "san-1.x:3260", "iqn": "iqn.2001-04.e:d-lun-x", "lun": 3, "iscsiInterface": "default" } }),
            "san-1.x:3260:iqn.2001-04.e:d-lun-x:3"),
        // The same spec name under two plugins.
        case("kubernetes.io/fc", "disk", Some("kubernetes.io/fc/50060e801049cfd1-50060e801049cfd2-lun-0"), "dev",
            json!({ "fc": { "targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 0 } }),
            "[50060e801049cfd1 50060e801049cfd2]:0"),
        case("kubernetes.io/gce-pd", "gce", Some("kubernetes.io/gce-pd/mounts/pd-1"), "dev",
            json!({ "gcePersistentDisk": { "pdName": "pd-1" } }), "pd-1"),
        case("kubernetes.io/aws-ebs", "aws", Some("kubernetes.io/aws-ebs/mounts/aws/eu-1a/vol-1"), "dev",
            json!({ "awsElasticBlockStore": { "volumeID": "aws://eu-1a/vol-1" } }), "aws://eu-1a/vol-1"),
        case("kubernetes.io/cinder", "cinder", Some("kubernetes.io/cinder/mounts/8f3c"), "dev",
            json!({ "cinder": { "volumeID": "8f3c" } }), "8f3c"),
        case("kubernetes.io/vsphere-volume", "vs", Some("kubernetes.io/vsphere-volume/mounts/[ds 1] vm/d.vmdk"), "dev",
            json!({ "vsphereVolume": { "volumePath": "[ds 1] vm/d.vmdk" } }), "[ds 1] vm/d.vmdk"),
        case("kubernetes.io/rbd", "rbd", Some("kubernetes.io/rbd/rbd/pool-image-img"), "dev",
            json!({ "rbd": { "pool": "pool", "image": "img" } }), "pool:img"),
        case("kubernetes.io/photon-pd", "ph", Some("kubernetes.io/photon-pd/mounts/d1"), "dev",
            json!({ "photonPersistentDisk": { "pdID": "d1" } }), "d1"),
        case("kubernetes.io/glusterfs", "gl", None, "10.0.0.1:vol", json!({ "glusterfs": { "path": "vol" } }), ""),
        case("kubernetes.io/cephfs", "ceph", None, "10.0.0.1:6789,10.0.0.2:6789:/a",
            json!({ "cephfs": { "monitors": ["10.0.0.1:6789", "10.0.0.2:6789"], "path": "/a" } }), ""),
        case("kubernetes.io/azure-file", "af", None, "//acc.file.core.windows.net/share",
            json!({ "azureFile": { "shareName": "share" } }), ""),
        case("kubernetes.io/portworx-volume", "px", None, "dev", json!({ "portworxVolume": {} }), ""),
        case("kubernetes.io/scaleio", "sio", None, "dev", json!({ "scaleIO": {} }), ""),
        case("kubernetes.io/quobyte", "qb", None, "dev", json!({ "quobyte": {} }), ""),
        case("kubernetes.io/flocker", "fl", None, "dev", json!({ "flocker": {} }), ""),
        // A checksum of the disk's URI, and `m` if the disk is a managed one.
        case("kubernetes.io/azure-disk", "ad", Some("kubernetes.io/azure-disk/mounts/m1234"), "dev",
            json!({ "azureDisk": { "kind": "Managed" } }), UNKNOWN),
        case("kubernetes.io/azure-disk", "blob", Some("kubernetes.io/azure-disk/mounts/b1234"), "dev",
            json!({ "azureDisk": {} }), UNKNOWN),
        case("kubernetes.io/storageos", "pv.ns.vol", Some("kubernetes.io~storageos/mounts/pv.ns.vol"), "dev",
            json!({ "name": "pv", "storageos": { "volumeNamespace": "ns", "volumeName": "vol" } }), ""),
        case("kubernetes.io/git-repo", "git", None, "", json!({ "gitRepo": {} }), ""),
        case("acme/nfs", "flex", Some("kubernetes.io/flexvolume/acme/nfs/mounts/flex"), "dev",
            json!({ "flexVolume": { "driver": "acme/nfs" } }), "flex"),
        case("lone", "alone", None, "dev", json!({ "flexVolume": { "driver": "lone" } }), ""),
    ]
}

fn root(node: &Node) -> PathBuf {
    node.folder().join("kubelet")
}

fn mount(source: &str, at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    tool(
        "mount",
        &["-t", "tmpfs", "-o", "size=64k", source]
            .map(OsStr::new)
            .into_iter()
            .chain([at.as_os_str()])
            .collect::<Vec<_>>(),
    )
}

fn make(node: &Node, case: &Case) -> Result<PathBuf> {
    let path = root(node).join(format!("pods/{POD}/volumes/{}/{}", case.plugin.replace('/', "~"), case.folder));
    std::fs::create_dir_all(&path)?;
    match case.global {
        None if !case.is_mount() => {
            let marker = root(node).join(format!("pods/{POD}/plugins/kubernetes.io~empty-dir/wrapped_{}", case.folder));
            std::fs::create_dir_all(&marker)?;
            std::fs::write(marker.join("ready"), "")?;
        }
        None => mount(case.source, &path)?,
        Some(global) => {
            let global = root(node).join("plugins").join(global);
            mount(case.source, &global)?;
            tool("mount", &[OsStr::new("--bind"), global.as_os_str(), path.as_os_str()])?;
        }
    }
    Ok(path)
}

fn scan(node: &Node) -> Result<Value> {
    node.run(&["scan", "-o", "json"])?.expect(3)?.json()
}

fn entry<'a>(scan: &'a Value, list: &str, path: &Path) -> Result<&'a Value> {
    let mut all = scan[list].as_array().into_iter().flatten();
    let found = all.find(|entry| entry["path"].as_str() == path.to_str());
    found.with_context(|| format!("{} is not in {list} of {scan:#}", path.display()))
}

fn every_plugin(node: &mut Node) -> Result<Verdict> {
    let cases = cases();
    let paths = cases.iter().map(|case| make(node, case)).collect::<Result<Vec<_>>>()?;
    let scan = scan(node)?;
    ensure!(scan["volumes"].as_array().map(Vec::len) == Some(cases.len()), "{scan:#}");
    ensure!(scan["leftovers"] == json!([]), "{scan:#}");
    for (case, path) in cases.iter().zip(&paths) {
        let found = entry(&scan, "volumes", path)?;
        let mut told = case.told.clone();
        told["name"] = case.name().into();
        for (field, want) in [
            ("plugin", json!(case.plugin)),
            ("specName", json!(case.folder)),
            ("uniqueName", case.unique_name()),
            ("mode", json!("Filesystem")),
            ("mounted", json!(case.is_mount())),
            ("state", json!("Mounted")),
            ("record", json!("Missing")),
            ("reconstruction", json!("Partial")),
            ("spec", json!({ "volume": told })),
            ("devicePath", case.global.map_or(Value::Null, |g| json!(root(node).join("plugins").join(g)))),
        ] {
            ensure!(found[field] == want, "{field} of {}: {found:#}, not {want:#}", path.display());
        }
        // Nothing that was told is said to be lost as well.
        let own = case.plugin == "kubernetes.io/git-repo";
        ensure!((found["lost"][0] == "persistentVolume") != own, "{found:#}");
        let source = case.told.as_object().and_then(|told| told.iter().find(|(name, _)| *name != "name"));
        let (source, fields) = source.context("no source")?;
        for field in fields.as_object().into_iter().flatten().map(|(name, _)| format!("{source}.{name}")) {
            ensure!(!found["lost"].as_array().into_iter().flatten().any(|lost| *lost == field), "{found:#}");
        }
        let Some(global) = case.global else { continue };
        let device = entry(&scan, "devices", &root(node).join("plugins").join(global))?;
        ensure!(
            device["uniqueName"] == case.device_name() && device["users"] == json!([POD]) && device["mounted"] == true,
            "{device:#}"
        );
    }
    // B14, B15: its pod is gone, and nobody but the mount table to ask. flexVolumes wait for their drivers.
    let once = node.once()?.expect(3)?.json()?;
    let left = once["volumes"].as_array().context("no list")?;
    ensure!(left.iter().all(|volume| volume["plugin"] == "acme/nfs" || volume["plugin"] == "lone"), "{once:#}");
    ensure!(once["problems"].to_string().matches("\"DriverMissing\"").count() == 2, "{once:#}");
    let mounts = node.mounts()?.into_iter();
    let (in_pods, devices): (BTreeSet<_>, BTreeSet<_>) =
        mounts.partition(|path| path.starts_with(root(node).join("pods")));
    ensure!(in_pods.len() == 2, "{once:#}");
    // Devices that need more than an unmount stay, and say so. So do those that nobody can name.
    let more = ["rbd/", "flexvolume/"];
    let needs_more = |global: &str| more.iter().any(|kind| global.starts_with(&format!("kubernetes.io/{kind}")));
    let with_global = cases.iter().filter_map(|case| Some((case, case.global?)));
    let stay: BTreeMap<PathBuf, &str> = with_global
        .filter(|(case, global)| needs_more(global) || case.device_name().is_null())
        .map(|(_, global)| {
            let code = if needs_more(global) { "DeviceNotUndone" } else { "RecordMissing" };
            (root(node).join("plugins").join(global), code)
        })
        .collect();
    ensure!(devices.iter().collect::<BTreeSet<_>>() == stay.keys().collect(), "{devices:?}");
    for (path, code) in &stay {
        let device = entry(&once, "devices", path)?;
        ensure!(device["problems"].to_string().contains(code), "{device:#}");
        let users = if path.to_string_lossy().contains("/flexvolume/") { json!([POD]) } else { json!([]) };
        ensure!(device["users"] == users, "{device:#}");
    }
    Ok(Verdict::Passed)
}

/// What the kubelet never sees: global mounts, and their folders, that no pod's folder accounts for.
fn devices_alone(node: &mut Node) -> Result<Verdict> {
    let globals: Vec<_> = cases().into_iter().filter_map(|case| Some((case.global?, case.plugin))).collect();
    for mounted in [false, true] {
        for (global, plugin) in &globals {
            let path = root(node).join("plugins").join(global);
            if mounted {
                mount("dev", &path)?;
            } else {
                std::fs::create_dir_all(&path)?;
            }
            let scan = scan(node)?;
            let device = entry(&scan, "devices", &path)?;
            ensure!(device["plugin"] == *plugin && device["users"] == json!([]), "{device:#}");
            ensure!(device["mounted"] == mounted, "{device:#}");
        }
        ensure!(scan(node)?["devices"].as_array().map(Vec::len) == Some(globals.len()));
    }
    Ok(Verdict::Passed)
}

fn damaged(node: &mut Node) -> Result<Verdict> {
    let case = &cases()[2];
    let healthy = make(node, case)?;
    let at = |rel: &[u8]| root(node).join(OsStr::from_bytes(rel));
    let pods = format!("pods/{POD}").into_bytes();
    let in_pod = |rel: &[u8]| at(&[&pods[..], b"/", rel].concat());
    for folder in [
        &b"pods/u1/volumes"[..],
        b"pods/u2",
        b"pods/u3/volumes/kubernetes.io~nfs",
        b"pods/u5",
        b"pods/\xff\xfe/volumes/kubernetes.io~nfs/v",
        b"pods/new\nline/volumes/kubernetes.io~nfs/v",
        b"pods/u6/volumes/kubernetes.io~csi/x/vol_data.json",
        b"plugins/kubernetes.io/csi/d/h/globalmount",
        b"plugins/kubernetes.io/flexvolume/a/b/c/d/mounts/v",
        b"plugins/kubernetes.io/iscsi/iface-/x",
    ] {
        std::fs::create_dir_all(at(folder))?;
    }
    for folder in [
        &b"volumes/kubernetes.io~nfs/\xff"[..],
        b"volumes/kubernetes.io~nfs/a\nb",
        b"volumes/\xff/v",
        b"volumes/~/v",
        b"volumes/a~b~c/v",
    ] {
        std::fs::create_dir_all(in_pod(folder))?;
    }
    for file in [
        &b"pods/file"[..],
        b"pods/u1/volumes/kubernetes.io~nfs",
        b"pods/u2/volumes",
        b"pods/u3/volumes/kubernetes.io~nfs/v",
        b"plugins/kubernetes.io/gce-pd",
        b"plugins/kubernetes.io/fc",
    ] {
        std::fs::write(at(file), "a file")?;
    }
    // Links that lead round in a circle, to nowhere, and out of the root.
    for (link, to) in [
        (&b"pods/loop"[..], "loop"),
        (b"pods/u5/volumes", "../u5/volumes"),
        (b"pods/out", "/etc"),
        (b"plugins/kubernetes.io/cinder", "cinder"),
    ] {
        std::os::unix::fs::symlink(to, at(link))?;
    }
    let mut locked = std::fs::metadata(at(b"pods/u3"))?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut locked, 0);
    std::fs::set_permissions(at(b"pods/u3"), locked)?;
    for args in [&["scan", "-o", "json"][..], &["scan"], &["scan", "-o", "yaml"], &["scan", "-o", "html"]] {
        node.run(args)?.expect(3)?;
    }
    let scan = scan(node)?;
    let found = entry(&scan, "volumes", &healthy)?;
    ensure!(found["uniqueName"] == format!("{}/{}", case.plugin, case.unique), "{found:#}");
    entry(&scan, "volumes", &in_pod(b"volumes/kubernetes.io~nfs/a\nb"))?;
    let problems: Vec<_> =
        scan["problems"].as_array().into_iter().flatten().filter_map(|p| p["code"].as_str()).collect();
    for code in ["UnreadableName", "NotAFolder", "SymlinkInTheWay"] {
        ensure!(problems.contains(&code), "{code} is not among {problems:?}");
    }
    Ok(Verdict::Passed)
}

/// Calls that change files or mounts.
const CHANGING: [&str; 24] = [
    "mount",
    "umount2",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "fsconfig",
    "mount_setattr",
    "pivot_root",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "mknodat",
    "symlinkat",
    "linkat",
    "truncate",
    "fchmodat",
    "fchownat",
    "utimensat",
];

/// What a trace (`strace -f -y`) has that a scan must not do, with these mount points.
fn forbidden(trace: &str, points: &[PathBuf]) -> Vec<String> {
    let bad = |line: &&str| {
        // `123 openat2(5</a/b>, "c", …) = 6</a/b/c>`
        let call =
            line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').trim_start_matches("[pid ").trim_start();
        let Some((name, rest)) = call.split_once('(') else { return false };
        // How the kernel is asked for what it can do: each of these changes nothing.
        let probe = match name {
            "open_tree" => !rest.contains("OPEN_TREE_CLONE"),
            "fsopen" => rest.contains(" = -1 EINVAL"),
            "mount_setattr" => rest.contains("{attr_set=0, attr_clr=0, propagation=0"),
            _ => false,
        };
        if (CHANGING.contains(&name) && !probe)
            || (name.starts_with("open")
                && ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"].iter().any(|f| rest.contains(f))
                && !rest.contains("/dev/null"))
        {
            return true;
        }
        let mut paths = vec![];
        if let Some((_, opened)) = rest.rsplit_once(" = ")
            && let Some((_, path)) = opened.split_once('<')
        {
            paths.push(PathBuf::from(path.trim_end_matches('>')));
        }
        // An open that crosses no mount is turned away before the file system there hears of it.
        let turned_away = name == "openat2" && (rest.contains("EXDEV") || rest.contains("RESOLVE_NO_XDEV"));
        if !turned_away {
            let at = rest
                .split_once('<')
                .and_then(|(fd, rest)| fd.bytes().all(|b| b.is_ascii_digit()).then(|| rest.split_once('>'))?)
                .map_or("", |(path, _)| path);
            if let Some(name) = rest.split('"').nth(1)
                && !name.is_empty()
            {
                paths.push(Path::new(at).join(name));
            }
        }
        paths.iter().any(|path| points.iter().any(|point| path.starts_with(point)))
    };
    trace.lines().filter(bad).map(ToOwned::to_owned).collect()
}

/// The trace of a command; none, with the reason, where nothing can be traced.
fn trace(node: &Node, command: &Command, codes: &[i32]) -> Result<Result<String, String>> {
    let file = node.folder().join("trace");
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-y",
        "-s",
        "4096",
        "-e",
        "trace=%file,%desc,mount,umount2,move_mount,open_tree,fsopen,fsmount,fsconfig,mount_setattr",
        "-o",
    ]);
    strace.arg(&file).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::null());
    let output = match strace.output() {
        Ok(output) => output,
        Err(error) => return Ok(Err(format!("cannot run strace: {error}"))),
    };
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    if !output.status.code().is_some_and(|code| codes.contains(&code)) || text.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains("ptrace") || said.contains("PTRACE"), "{strace:?}: {}: {said}", output.status);
        return Ok(Err(format!("nothing can be traced: {said}")));
    }
    Ok(Ok(text))
}

fn traced(node: &mut Node) -> Result<Verdict> {
    for case in cases() {
        make(node, &case)?;
    }
    mount("dev", &root(node).join(format!("pods/{POD}/volumes/kubernetes.io~csi/x/mount")))?;
    mount("dev", &root(node).join(format!("pods/{POD}/volume-subpaths/disk/main/0")))?;
    mount("dev", &root(node).join(format!("pods/{POD}/etc-hosts")))?;
    // A block volume, and files that mounts hide.
    let map = root(node).join(format!("plugins/kubernetes.io/gce-pd/volumeDevices/pd-1/{POD}"));
    std::fs::create_dir_all(map.parent().context("no folder")?)?;
    std::fs::write(&map, "")?;
    tool("mount", &["--bind".as_ref(), "/dev/null".as_ref(), map.as_os_str()])?;
    let link = root(node).join(format!("pods/{POD}/volumeDevices/kubernetes.io~gce-pd/pv"));
    std::fs::create_dir_all(link.parent().context("no folder")?)?;
    std::os::unix::fs::symlink("/dev/null", &link)?;
    let stage = root(node).join("plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-9");
    mount("dev", &stage)?;
    std::fs::write(stage.join("iscsi.json"), "{}")?;
    std::fs::create_dir_all(root(node).join("plugins/kubernetes.io/nfs"))?;
    std::fs::write(root(node).join("plugins/kubernetes.io/nfs/data~vs.json"), "{}")?;
    let points = node.mounts()?.into_iter().filter(|point| *point != root(node)).collect::<Vec<_>>();
    let scanned = match trace(node, &node.refloat(&["scan", "-o", "json"]), &[3])? {
        Ok(text) => text,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    ensure!(scanned.contains("openat2"), "the trace has nothing of a scan");
    let found = forbidden(&scanned, &points);
    ensure!(found.is_empty(), "{found:#?}");
    // What does look inside, or write, is seen by the same test.
    let mut list = Command::new("ls");
    list.arg(&points[0]);
    let mut touch = Command::new("touch");
    touch.arg(node.host().join("file"));
    for command in [list, touch] {
        let text = trace(node, &command, &[0])?.map_err(anyhow::Error::msg)?;
        ensure!(!forbidden(&text, &points).is_empty(), "{command:?} goes unnoticed");
    }
    Ok(Verdict::Passed)
}
