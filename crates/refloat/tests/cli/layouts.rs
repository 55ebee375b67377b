//! Layouts of a tree that a kubelet made, with real mounts and real devices: block volumes of every plugin, other programs'
//! files, the places that distributions have their root at, and what no pod's folder accounts for.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::node::Node;
use crate::{Test, Verdict, is_real_root, saved, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("block_volumes_of_every_plugin_are_found_by_their_devices", blocks),
    ("a_device_that_lost_its_symlink_is_shown", without_symlink),
    ("two_disks_of_one_target_are_two_devices", one_target),
    ("other_programs_files_are_read_and_no_secret_comes_out", files),
    ("a_file_is_not_read_through_a_link_or_a_mount", hidden_files),
    ("each_place_that_a_root_may_have_shows_the_same", places),
    ("a_mount_is_shown_whatever_it_is_of", strays),
    ("the_rest_of_the_layouts_are_known", others),
    ("a_socket_of_nobody_is_shown", sockets),
    ("explain_by_every_name_of_a_foreign_volume", explained),
    ("volumes_in_plain_folders_without_a_record_are_well", plain_folders),
];

const POD: &str = "9c1914c1-77f4-4a8b-8527-c4e010587966";
const OTHER: &str = "1b2f0c55-0f3e-4c63-9d0b-6f2f1d9b7a10";

fn scan(node: &Node) -> Result<Value> {
    let ran = node.run(&["scan", "-o", "json"])?;
    ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
    ran.json()
}

fn entry<'a>(scan: &'a Value, list: &str, path: &Path) -> Result<&'a Value> {
    let mut all = scan[list].as_array().into_iter().flatten();
    let found = all.find(|entry| entry["path"].as_str() == path.to_str());
    found.with_context(|| format!("{} is not in {list} of {scan:#}", path.display()))
}

fn codes(entry: &Value) -> Vec<&str> {
    entry["problems"].as_array().into_iter().flatten().filter_map(|problem| problem["code"].as_str()).collect()
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    tool("mount", &[OsStr::new("--bind"), from.as_os_str(), to.as_os_str()])
}

fn mount(source: &str, at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    tool(
        "mount",
        &[OsStr::new("-t"), "tmpfs".as_ref(), "-o".as_ref(), "size=64k".as_ref(), source.as_ref(), at.as_ref()],
    )
}

/// A plugin's block volume: the map folder's name, and what it tells.
#[rustfmt::skip] // a table
fn kinds() -> Vec<(&'static str, &'static str, Value, Option<&'static str>)> {
    vec![
        ("iscsi", "iface-default/san-1:3260-iqn.2001-04.e:d-lun-3",
            json!({ "iscsi": { "targetPortal": "san-1:3260", "iqn": "iqn.2001-04.e:d", "lun": 3, "iscsiInterface": "default" } }),
            Some("san-1:3260:iqn.2001-04.e:d:3")),
        ("fc", "50060e801049cfd1-lun-0", json!({ "fc": { "targetWWNs": ["50060e801049cfd1"], "lun": 0 } }), Some("[50060e801049cfd1]:0")),
        ("rbd", "pool-image-img", json!({ "rbd": { "pool": "pool", "image": "img" } }), Some("pool:img")),
        ("gce-pd", "pd-1", json!({ "gcePersistentDisk": { "pdName": "pd-1" } }), Some("pd-1")),
        ("aws-ebs", "aws:/eu-1a/vol-1", json!({ "awsElasticBlockStore": { "volumeID": "aws://eu-1a/vol-1" } }), Some("aws://eu-1a/vol-1")),
        ("azure-disk", "disk-1", json!({ "azureDisk": { "diskName": "disk-1" } }), None),
        ("cinder", "8f3c", json!({ "cinder": { "volumeID": "8f3c" } }), Some("8f3c")),
        ("vsphere-volume", "[ds 1] vm/d.vmdk", json!({ "vsphereVolume": { "volumePath": "[ds 1] vm/d.vmdk" } }), Some("[ds 1] vm/d.vmdk")),
    ]
}

fn map_folder(node: &Node, plugin: &str, map: &str) -> PathBuf {
    node.root.join(format!("plugins/kubernetes.io/{plugin}/volumeDevices/{map}"))
}

fn symlink(node: &Node, plugin: &str, pv: &str) -> PathBuf {
    node.root.join(format!("pods/{POD}/volumeDevices/kubernetes.io~{plugin}/{pv}"))
}

/// What the kubelet makes of a block volume, but for the loop device: bind over a file, and symlink.
fn map(node: &Node, plugin: &str, map: &str, pv: Option<&str>, device: &Path) -> Result<PathBuf> {
    let file = map_folder(node, plugin, map).join(POD);
    std::fs::create_dir_all(file.parent().context("no folder")?)?;
    std::fs::write(&file, "")?;
    bind(device, &file)?;
    if let Some(pv) = pv {
        let link = symlink(node, plugin, pv);
        std::fs::create_dir_all(link.parent().context("no folder")?)?;
        std::os::unix::fs::symlink(device, link)?;
    }
    Ok(file)
}

/// Two devices: `/dev/null` is one that is always there.
fn devices(node: &mut Node) -> Result<Option<[PathBuf; 2]>> {
    if !is_real_root() {
        return Ok(None);
    }
    let mut all = vec![];
    for name in ["one.img", "two.img"] {
        let image = node.folder().join(name);
        std::fs::File::create(&image)?.set_len(1 << 20)?;
        let Ok(device) = node.attach_loop(&image) else { return Ok(None) };
        all.push(device);
    }
    Ok(all.try_into().ok())
}

/// The loop device that the kubelet attaches to what is bound, so that nobody detaches it.
struct Holder(String);

impl Holder {
    fn new(over: &Path) -> Result<Option<Self>> {
        let output = std::process::Command::new("losetup").args(["--find", "--show"]).arg(over).output()?;
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(output.status.success().then_some(Self(name)))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = tool("losetup", &["--detach".as_ref(), self.0.as_ref()]);
    }
}

fn no_devices() -> Verdict {
    Verdict::Skipped("no loop device can be had".into())
}

fn blocks(node: &mut Node) -> Result<Verdict> {
    let Some([one, two]) = devices(node)? else { return Ok(no_devices()) };
    for (plugin, name, _, _) in kinds() {
        map(node, plugin, name, Some("pv-a"), &one)?;
        // A second one of the same plugin, which only its device tells from the first.
        let second = match plugin {
            "iscsi" => "iface-default/san-1:3260-iqn.2001-04.e:d-lun-4".to_owned(),
            "fc" => "50060e801049cfd1-lun-1".to_owned(),
            "vsphere-volume" => "[ds 1] vm/e.vmdk".to_owned(),
            _ => format!("{name}x"),
        };
        map(node, plugin, &second, Some("pv-b"), &two)?;
    }
    // What holds the first of them open.
    let held = map_folder(node, "gce-pd", "pd-1").join(POD);
    let Some(holder) = Holder::new(&held)? else { return Ok(no_devices()) };
    let scan = scan(node)?;
    ensure!(scan["leftovers"] == json!([]), "{:#}", scan["leftovers"]);
    ensure!(scan["volumes"].as_array().map(Vec::len) == Some(2 * kinds().len()), "{scan:#}");
    for (plugin, name, source, unique) in kinds() {
        let link = symlink(node, plugin, "pv-a");
        let found = entry(&scan, "volumes", &link)?;
        let mut spec = json!({ "volumeMode": "Block" });
        for (field, value) in source.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let unique = unique.map_or(Value::Null, |unique| json!(format!("kubernetes.io/{plugin}/{unique}")));
        for (field, want) in [
            ("plugin", json!(format!("kubernetes.io/{plugin}"))),
            ("specName", json!("pv-a")),
            ("mode", json!("Block")),
            ("mounted", json!(true)),
            ("reconstruction", json!("Partial")),
            ("devicePath", json!(one)),
            ("uniqueName", unique.clone()),
        ] {
            ensure!(found[field] == want, "{field} of {}: {found:#}, not {want:#}", link.display());
        }
        ensure!(found["spec"]["persistentVolume"]["spec"] == spec, "{found:#}\nnot {spec:#}");
        let second = entry(&scan, "volumes", &symlink(node, plugin, "pv-b"))?;
        ensure!(second["devicePath"] == json!(two) && second["uniqueName"] != unique || unique.is_null(), "{second:#}");
        let device = entry(&scan, "devices", &map_folder(node, plugin, name))?;
        ensure!(device["users"] == json!([POD]) && device["uniqueName"] == unique, "{device:#}");
        let stays = device["problems"].to_string().contains("DeviceNotUndone");
        // Those of Fibre Channel and iSCSI are undone by what their path says.
        ensure!(stays != ["fc", "iscsi"].contains(&plugin) || unique.is_null(), "{device:#}");
    }
    // Explained with what holds it.
    let explained = node.run(&["explain", &format!("{POD}/pv-a")])?;
    ensure!(explained.stdout.contains(&holder.0), "{}", explained.stdout);
    // The same from the node's saved mount table and its unpacked root, where no device is to be asked.
    let (root, file) = (node.root.clone(), node.folder().join("mountinfo"));
    std::fs::write(&file, std::fs::read("/proc/self/mountinfo")?)?;
    let unpacked = node.folder().join("unpacked");
    saved::unpack(&root, &unpacked)?;
    node.root = unpacked;
    node.more = ["--mountinfo", &file.display().to_string(), "--original-root", &root.display().to_string()]
        .map(str::to_owned)
        .to_vec();
    let elsewhere = saved::without_ids(crate::layouts::scan(node)?);
    let live = saved::without_ids(scan.clone());
    for (live, saved) in
        live["volumes"].as_array().into_iter().flatten().zip(elsewhere["volumes"].as_array().into_iter().flatten())
    {
        for field in ["path", "specName", "uniqueName", "spec", "lost", "mounted", "devicePath"] {
            ensure!(live[field] == saved[field], "{field}: live {live:#}, saved {saved:#}");
        }
    }
    ensure!(
        elsewhere["leftovers"] == json!([]) && elsewhere["volumes"].as_array().map(Vec::len) == Some(2 * kinds().len())
    );
    (node.root, node.more) = (root, vec![]);
    // Nobody may touch what cannot be undone.
    let undone = ["fc", "iscsi"].map(|plugin| node.root.join("plugins/kubernetes.io").join(plugin));
    let mut before = node.mounts()?;
    before.retain(|path| !undone.iter().any(|folder| path.starts_with(folder)));
    node.once()?;
    ensure!(node.mounts()? == before, "a block device without a record was unmounted");
    Ok(Verdict::Passed)
}

/// 12.1, 16: the kubelet removes the symlink of an orphan and leaves device and mount.
fn without_symlink(node: &mut Node) -> Result<Verdict> {
    let Some([one, two]) = devices(node)? else { return Ok(no_devices()) };
    let lone = map(node, "gce-pd", "pd-1", None, &one)?;
    let scan_of = |node: &Node| -> Result<Value> {
        let scan = scan(node)?;
        ensure!(scan["volumes"] == json!([]), "{scan:#}");
        Ok(scan)
    };
    let seen = scan_of(node)?;
    let left = entry(&seen, "leftovers", &lone)?;
    ensure!(codes(left) == ["BlockMapLeft"] && left["problems"].to_string().contains(POD), "{left:#}");
    let device = entry(&seen, "devices", &map_folder(node, "gce-pd", "pd-1"))?;
    ensure!(device["users"] == json!([POD]) && device["state"] == "Mounted", "{device:#}");
    // A symlink to another device is of another volume.
    let link = symlink(node, "gce-pd", "pv");
    std::fs::create_dir_all(link.parent().context("no folder")?)?;
    std::os::unix::fs::symlink(&two, &link)?;
    let seen = scan(node)?;
    ensure!(entry(&seen, "volumes", &link)?["mounted"] == false, "{seen:#}");
    ensure!(codes(entry(&seen, "leftovers", &lone)?) == ["BlockMapLeft"], "{seen:#}");
    // A symlink of udev's is followed in /dev, and nowhere else.
    std::fs::remove_file(&link)?;
    let by_name = Path::new("/dev").join(format!("refloat-test-{}", std::process::id()));
    std::os::unix::fs::symlink(one.file_name().context("no name")?, &by_name)?;
    std::os::unix::fs::symlink(&by_name, &link)?;
    let seen = scan(node);
    std::fs::remove_file(&by_name)?;
    let seen = seen?;
    ensure!(entry(&seen, "volumes", &link)?["mounted"] == true && seen["leftovers"] == json!([]), "{seen:#}");
    // B31: the device that the symlink names is gone. What is bound is not taken for it, and both are shown.
    std::fs::remove_file(&link)?;
    std::os::unix::fs::symlink("/dev/refloat-test-gone", &link)?;
    let seen = scan(node)?;
    let found = entry(&seen, "volumes", &link)?;
    ensure!(found["mounted"] == false && found["devicePath"] == "/dev/refloat-test-gone", "{found:#}");
    ensure!(codes(entry(&seen, "leftovers", &lone)?) == ["BlockMapLeft"], "{seen:#}");
    // An emptied map folder, as after a crash, is still a device to be shown.
    let empty = map_folder(node, "fc", "50060e801049cfd1-lun-0");
    std::fs::create_dir_all(&empty)?;
    ensure!(entry(&scan(node)?, "devices", &empty)?["users"] == json!([]));
    Ok(Verdict::Passed)
}

/// B30: one pod goes, and the other still uses the target.
fn one_target(node: &mut Node) -> Result<Verdict> {
    let stage =
        |lun: u32| node.root.join(format!("plugins/kubernetes.io/iscsi/iface-h:3260:pv1/h:3260-iqn.a-lun-{lun}"));
    let path = |pod: &str, pv: &str| node.root.join(format!("pods/{pod}/volumes/kubernetes.io~iscsi/{pv}"));
    for (lun, pod, pv) in [(0, POD, "pv0"), (1, OTHER, "pv1")] {
        mount("disk", &stage(lun))?;
        let path = path(pod, pv);
        std::fs::create_dir_all(&path)?;
        bind(&stage(lun), &path)?;
    }
    let seen = scan(node)?;
    for (lun, pod, pv) in [(0, POD, "pv0"), (1, OTHER, "pv1")] {
        let unique = format!("kubernetes.io/iscsi/h:3260:iqn.a:{lun}");
        let device = entry(&seen, "devices", &stage(lun))?;
        ensure!(device["users"] == json!([pod]) && device["uniqueName"] == unique.as_str(), "{device:#}");
        let volume = entry(&seen, "volumes", &path(pod, pv))?;
        ensure!(
            volume["uniqueName"] == unique.as_str() && volume["spec"]["volume"]["iscsi"]["lun"] == lun,
            "{volume:#}"
        );
    }
    // The first pod's mounts and folder are gone; of its device there is only the file.
    tool("umount", &[path(POD, "pv0").as_os_str()])?;
    tool("umount", &[stage(0).as_os_str()])?;
    for folder in ["volumes/kubernetes.io~iscsi/pv0", "volumes/kubernetes.io~iscsi", "volumes", ""] {
        std::fs::remove_dir(node.root.join("pods").join(POD).join(folder))?;
    }
    for with_file in [false, true] {
        let file = stage(0).join("iscsi.json");
        if with_file {
            std::fs::write(
                &file,
                r#"{"VolName":"pv0","Portals":["h:3260","i:3260"],"Iqn":"iqn.a","Lun":"0","InitiatorName":"iqn.i"}"#,
            )?;
        }
        let seen = scan(node)?;
        let left = entry(&seen, "devices", &stage(0))?;
        ensure!(left["users"] == json!([]) && left["mounted"] == false, "{left:#}");
        ensure!(left["record"] == if with_file { "Foreign" } else { "Missing" }, "{left:#}");
        ensure!(!codes(left).contains(&"DeviceNotUndone"), "{left:#}");
        ensure!(entry(&seen, "devices", &stage(1))?["users"] == json!([OTHER]), "{seen:#}");
    }
    Ok(Verdict::Passed)
}

const ISCSI: &str = r#"{"VolName":"disk","Portals":["h:3260","i:3260"],"Iqn":"iqn.a","Lun":"2","InitIface":"default","Iface":"default",
"InitiatorName":"","MetricsProvider":null,"Secret":{"node.session.auth.password":"hunter2"}}"#;

fn files(node: &mut Node) -> Result<Verdict> {
    let volume = |plugin: &str, name: &str| node.root.join(format!("pods/{POD}/volumes/{plugin}/{name}"));
    let stage = node.root.join("plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2");
    std::fs::create_dir_all(&stage)?;
    let disk = volume("kubernetes.io~iscsi", "disk");
    std::fs::create_dir_all(&disk)?;
    std::fs::write(stage.join("iscsi.json"), ISCSI)?;
    let rbd = node.root.join("plugins/kubernetes.io/rbd/mounts/p-image-i");
    std::fs::create_dir_all(&rbd)?;
    std::fs::write(rbd.join("rbd.json"), r#"{"Pool":"p","Image":"other","Mon":["m"],"Secret":"hunter2"}"#)?;
    let gce = volume("kubernetes.io~gce-pd", "data");
    std::fs::create_dir_all(&gce)?;
    let pv =
        r#"{"capacity":{"storage":"1Gi"},"gcePersistentDisk":{"pdName":"pd","fsType":"xfs"},"password":"hunter2"}"#;
    std::fs::write(gce.with_file_name("data~pv.json"), pv)?;
    let nfs = volume("kubernetes.io~nfs", "shared");
    mount("srv:/exports/a", &nfs)?;
    std::fs::write(node.root.join("plugins/kubernetes.io/nfs-files.json"), "a file in the way")?;
    std::fs::create_dir_all(node.root.join("plugins/kubernetes.io/nfs"))?;
    std::fs::write(
        node.root.join("plugins/kubernetes.io/nfs/shared~vs.json"),
        r#"{"nfs":{"server":"other","path":"/exports/a"}}"#,
    )?;
    let torn = volume("kubernetes.io~cinder", "torn");
    std::fs::create_dir_all(&torn)?;
    std::fs::write(torn.with_file_name("torn~pv.json"), r#"{"cinder":{"volumeID":"hunter2"#)?;
    for args in [&["scan", "-o", "json"][..], &["scan", "-o", "yaml"], &["scan", "-o", "html"], &["explain", POD]] {
        let ran = node.run(args)?;
        ensure!(!ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"), "{args:?} tells a secret: {ran:?}");
    }
    let scan = scan(node)?;
    let found = entry(&scan, "volumes", &disk)?;
    let iscsi = json!({ "targetPortal": "h:3260", "portals": ["i:3260"], "iqn": "iqn.a", "lun": 2, "iscsiInterface": "default" });
    ensure!(found["spec"]["volume"]["iscsi"] == iscsi && found["record"] == "Foreign", "{found:#}");
    ensure!(found["lost"].to_string().contains("iscsi.secretRef"), "{found:#}");
    let found = entry(&scan, "volumes", &gce)?;
    let pv = &found["spec"]["persistentVolume"];
    ensure!(pv["spec"]["gcePersistentDisk"] == json!({ "pdName": "pd", "fsType": "xfs" }), "{found:#}");
    ensure!(found["lost"] == json!([]) && pv["spec"]["capacity"]["storage"] == "1Gi", "{found:#}");
    // The mount table is believed.
    let found = entry(&scan, "volumes", &nfs)?;
    ensure!(found["spec"]["volume"]["nfs"]["server"] == "srv", "{found:#}");
    ensure!(
        codes(found) == ["ForeignRecordContradicts"] && found["problems"].to_string().contains("other"),
        "{found:#}"
    );
    let found = entry(&scan, "volumes", &torn)?;
    ensure!(found["record"] == "Damaged" && codes(found) == ["ForeignRecordDamaged"], "{found:#}");
    ensure!(codes(entry(&scan, "devices", &rbd)?).contains(&"ForeignRecordContradicts"), "{scan:#}");
    ensure!(entry(&scan, "devices", &stage)?["record"] == "Foreign", "{scan:#}");
    let told = node.run(&["explain", &disk.display().to_string()])?.stdout;
    ensure!(told.contains("iscsi.json") && told.contains("lun"), "{told}");
    Ok(Verdict::Passed)
}

fn hidden_files(node: &mut Node) -> Result<Verdict> {
    let elsewhere = node.host().join("elsewhere");
    std::fs::create_dir_all(&elsewhere)?;
    std::fs::write(elsewhere.join("iscsi.json"), ISCSI)?;
    let disk = node.root.join(format!("pods/{POD}/volumes/kubernetes.io~iscsi/disk"));
    std::fs::create_dir_all(&disk)?;
    let stage = node.root.join("plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2");
    std::fs::create_dir_all(&stage)?;
    // What is mounted over the folder hides the file below, and is not looked into for one.
    std::fs::write(stage.join("iscsi.json"), ISCSI)?;
    bind(&elsewhere, &stage)?;
    let is_used = |node: &Node| -> Result<bool> {
        let scan = scan(node)?;
        Ok(entry(&scan, "volumes", &disk)?["spec"]["volume"]["iscsi"] != json!({}))
    };
    ensure!(!is_used(node)?, "a file was read through a mount");
    tool("umount", &[stage.as_os_str()])?;
    ensure!(is_used(node)?);
    let file = stage.join("iscsi.json");
    std::fs::remove_file(&file)?;
    std::os::unix::fs::symlink(elsewhere.join("iscsi.json"), &file)?;
    ensure!(!is_used(node)?, "a link was followed");
    let device = scan(node)?;
    ensure!(codes(entry(&device, "devices", &stage)?).contains(&"ForeignRecordDamaged"), "{device:#}");
    // A pipe that nobody writes to is not waited for.
    std::fs::remove_file(&file)?;
    tool("mkfifo", &[file.as_os_str()])?;
    ensure!(!is_used(node)?);
    Ok(Verdict::Passed)
}

/// The roots of k3s, k0s, microk8s and RKE: a folder, a folder behind a symlink, one that is bound elsewhere (each mount
/// then shows twice), and one that is bound onto itself.
fn places(node: &mut Node) -> Result<Verdict> {
    let host = node.host();
    let mut answers = vec![];
    for (place, how) in [
        ("var/lib/kubelet", "plain"),
        ("var/lib/rancher/k3s/agent/kubelet", "plain"),
        ("var/lib/k0s/kubelet", "symlink"),
        ("var/snap/microk8s/common/var/lib/kubelet", "symlink"),
        ("opt/rke/var/lib/kubelet", "bound"),
        ("var/lib/kubelet-self", "self"),
    ] {
        let real = host.join(place);
        std::fs::create_dir_all(&real)?;
        let given = host.join(format!("given-{}", place.replace('/', "-")));
        let shared = |at: &Path| tool("mount", &[OsStr::new("--make-shared"), at.as_os_str()]);
        match how {
            "symlink" => std::os::unix::fs::symlink(&real, &given)?,
            "bound" => {
                // As where the root is a volume of the distribution's own container.
                bind(&real, &real)?;
                shared(&real)?;
                std::fs::create_dir(&given)?;
                bind(&real, &given)?;
            }
            "self" => {
                bind(&real, &real)?;
                shared(&real)?;
                bind(&real, &real)?;
            }
            _ => {}
        }
        node.root = if matches!(how, "symlink" | "bound") { given } else { real.clone() };
        let pod = real.join(format!("pods/{POD}/volumes"));
        mount("srv:/e", &pod.join("kubernetes.io~nfs/v"))?;
        let stage = real.join("plugins/kubernetes.io/gce-pd/mounts/pd-1");
        mount("disk", &stage)?;
        let disk = pod.join("kubernetes.io~gce-pd/d");
        std::fs::create_dir_all(&disk)?;
        bind(&stage, &disk)?;
        let seen = scan(node)?;
        ensure!(seen["leftovers"] == json!([]), "{place}: {:#}", seen["leftovers"]);
        let root = seen["node"]["rootDir"].as_str().context("no root")?.to_owned();
        // The same answer at each, but for the root's own path and the mounts' ids.
        let mut text = json!([seen["volumes"], seen["devices"], seen["summary"]]);
        for entry in
            text.as_array_mut().into_iter().flatten().flat_map(|list| list.as_array_mut().into_iter().flatten())
        {
            if let Some(mount) = entry["mount"].as_object_mut() {
                mount.remove("id");
            }
        }
        answers.push((place, text.to_string().replace(&root, "ROOT")));
        for path in [&node.root, &real] {
            let path = path.join(format!("pods/{POD}/volumes/kubernetes.io~nfs/v"));
            let ran = node.run(&["explain", &path.display().to_string()])?;
            ensure!(how == "bound" && ran.code == 1 || ran.stdout.contains("kubernetes.io/nfs"), "{place}: {ran:?}");
        }
    }
    for (place, answer) in &answers[1..] {
        ensure!(*answer == answers[0].1, "{place}: {answer}\nnot {}", answers[0].1);
    }
    Ok(Verdict::Passed)
}

/// 12.1, 1: each mount that no pod folder accounts for is shown.
fn strays(node: &mut Node) -> Result<Verdict> {
    let root = node.root.clone();
    let points: Vec<PathBuf> = [
        format!("pods/{POD}/etc-hosts-folder"),
        format!("pods/{POD}/volume-subpaths/gone/main/0"),
        format!("pods/{POD}/volume-subpaths/gone/main"),
        format!("pods/{POD}/plugins/kubernetes.io~empty-dir/x"),
        "pods".into(),
        "plugins/acme.example/data".into(),
        "plugins/kubernetes.io/unheard-of/mounts/x".into(),
        "plugins/kubernetes.io/csi/acme.example/0a/globalmount".into(),
        "plugins/kubernetes.io/csi/pv/old/globalmount".into(),
        "plugins/kubernetes.io/csi/volumeDevices/staging/pv".into(),
        "plugins/kubernetes.io/csi/volumeDevices/publish/pv".into(),
        "plugins/kubernetes.io~quobyte".into(),
        "plugins/kubernetes.io~storageos/mounts/pv.ns.vol".into(),
        "plugins/kubernetes.io/photon-pd/mounts/d".into(),
        "plugins/kubernetes.io/flexvolume/lone/mounts/v".into(),
        "plugins_registry".into(),
        "device-plugins/x".into(),
    ]
    .iter()
    .map(|rel: &String| root.join(rel))
    .collect();
    for point in points.iter().rev() {
        // One over the folder of all pods would hide the rest.
        if *point != root.join("pods") {
            mount("stray", point)?;
        }
    }
    let scan_now = scan(node)?;
    for point in points.iter().filter(|point| **point != root.join("pods")) {
        let shown = ["volumes", "devices", "leftovers"].iter().any(|list| entry(&scan_now, list, point).is_ok());
        ensure!(shown, "{} is shown nowhere in {scan_now:#}", point.display());
        let told = node.run(&["explain", &point.display().to_string()])?;
        ensure!(!told.stdout.is_empty(), "{}: {told:?}", point.display());
    }
    mount("stray", &root.join("pods"))?;
    let told = scan(node)?.to_string();
    ensure!(told.contains("StaleMount") || told.contains("MountInTheWay"), "{told}");
    Ok(Verdict::Passed)
}

fn explained(node: &mut Node) -> Result<Verdict> {
    let stage = node.root.join("plugins/kubernetes.io/gce-pd/mounts/pd-1");
    mount("/dev/fake", &stage)?;
    let paths: Vec<PathBuf> =
        [POD, OTHER].iter().map(|pod| node.root.join(format!("pods/{pod}/volumes/kubernetes.io~gce-pd/d"))).collect();
    for path in &paths {
        std::fs::create_dir_all(path)?;
        bind(&stage, path)?;
    }
    let stray = node.root.join("plugins_registry/x");
    mount("stray", &stray)?;
    let host = node.host().join("outside");
    mount("outside", &host)?;
    let scan = scan(node)?;
    let id = |list: &str, path: &Path| -> Result<String> { Ok(entry(&scan, list, path)?["mount"]["id"].to_string()) };
    let short = |path: &Path| -> Result<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let path = path.to_str().context("not UTF-8")?;
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(path)).context("not mounted")?;
        line.split(' ').next().map(str::to_owned).context("no id")
    };
    let text = |path: &Path| path.display().to_string();
    // What is asked, and what is to be among the subjects.
    let mut asked = vec![
        (POD.to_owned(), vec!["volume d"]),
        (format!("{POD}/d"), vec!["volume d"]),
        (text(&paths[0]), vec!["volume d"]),
        (format!("{}/inside/file", text(&paths[0])), vec!["volume d"]),
        ("kubernetes.io/gce-pd/pd-1".into(), vec!["volume d", "device kubernetes.io/gce-pd/pd-1"]),
        (text(&stage), vec!["device kubernetes.io/gce-pd/pd-1"]),
        ("/dev/fake".into(), vec!["volume d", "device kubernetes.io/gce-pd/pd-1"]),
        (text(&stray), vec!["leftover"]),
        (short(&paths[1])?, vec!["mount ", "volume d"]),
        (short(&stage)?, vec!["mount ", "device kubernetes.io/gce-pd/pd-1"]),
        (short(&stray)?, vec!["mount ", "leftover"]),
        (short(&host)?, vec!["mount "]),
    ];
    if id("volumes", &paths[0])? != "null" {
        asked.push((id("volumes", &paths[0])?, vec!["mount ", "volume d"]));
        asked.push((id("devices", &stage)?, vec!["mount ", "device kubernetes.io/gce-pd/pd-1"]));
    }
    for (target, subjects) in asked {
        let told = node.run(&["explain", &target, "-o", "json"])?;
        ensure!(told.code == 0 || told.code == 3, "{target}: {told:?}");
        let told = told.json()?;
        ensure!(told["target"] == target.as_str() && told["kind"] == "Explanation", "{told:#}");
        let all = told["subjects"].as_array().context("no subjects")?;
        for subject in &subjects {
            let one = all.iter().find(|one| one["subject"].as_str().is_some_and(|text| text.starts_with(subject)));
            let one = one.with_context(|| format!("{target}: no {subject:?} in {told:#}"))?;
            for part in ["what", "wanted"] {
                ensure!(
                    !one[part].to_string().trim_matches(['"', '[', ']']).is_empty(),
                    "{target}: no {part}: {one:#}"
                );
            }
            ensure!(one["evidence"].to_string().contains("mount table"), "{target}: {one:#}");
            let below = !target.is_empty() && *subject != "mount ";
            ensure!(!below || !one["next"].as_array().is_none_or(Vec::is_empty), "{target}: no next step: {one:#}");
        }
        let text = node.run(&["explain", &target])?.stdout;
        ensure!(text.contains("what it is:") && text.contains("who wants it:"), "{target}: {text}");
    }
    // A user that nobody records is counted all the same, and named.
    let told = node.run(&["explain", &text(&stage)])?.stdout;
    ensure!(told.contains(POD) && told.contains(OTHER), "{told}");
    for target in ["999999999", "0", "18446744073709551616", ""] {
        node.run(&["explain", target])?.expect(1)?;
    }
    Ok(Verdict::Passed)
}

/// What has no folder, a folder alone, a folder called after its device, and both CSI layouts; a subPath of each.
fn others(node: &mut Node) -> Result<Verdict> {
    let pod = node.root.join("pods").join(POD);
    let volume = |plugin: &str, name: &str| pod.join("volumes").join(plugin.replace('/', "~")).join(name);
    let staged = |plugin: &str, name: &str, global: &str| -> Result<PathBuf> {
        let (global, path) = (node.root.join("plugins").join(global), volume(plugin, name));
        mount("disk", &global)?;
        std::fs::create_dir_all(&path)?;
        bind(&global, &path)?;
        Ok(path)
    };
    let git = volume("kubernetes.io/git-repo", "git");
    std::fs::create_dir_all(git.join("repo"))?;
    let marker = pod.join("plugins/kubernetes.io~empty-dir/wrapped_git");
    std::fs::create_dir_all(&marker)?;
    std::fs::write(marker.join("ready"), "")?;
    let storageos = staged("kubernetes.io/storageos", "pv.ns.vol", "kubernetes.io~storageos/mounts/pv.ns.vol")?;
    let azure = staged("kubernetes.io/azure-disk", "disk", "kubernetes.io/azure-disk/mounts/m1234")?;
    let oldest = staged("kubernetes.io/rbd", "old", "kubernetes.io/rbd/mounts/a-image-b-image-c")?;
    let gluster = volume("kubernetes.io/glusterfs", "gone");
    std::fs::create_dir_all(&gluster)?;
    // CSI as it is, and as it was before 1.24.
    let csi = |name: &str, handle: &str, stage: &str| -> Result<PathBuf> {
        let folder = volume("kubernetes.io/csi", name);
        let data = format!(r#"{{"driverName":"acme.example","specVolID":"{name}","volumeHandle":"{handle}"}}"#);
        let stage = node.root.join("plugins/kubernetes.io/csi").join(stage);
        mount("disk", &stage.join("globalmount"))?;
        std::fs::write(stage.join("vol_data.json"), &data)?;
        std::fs::create_dir_all(folder.join("mount"))?;
        bind(&stage.join("globalmount"), &folder.join("mount"))?;
        std::fs::write(folder.join("vol_data.json"), &data)?;
        Ok(folder.join("mount"))
    };
    let Some(hash) = sha256("h-1") else { return Ok(Verdict::Skipped("there is no sha256sum".into())) };
    let hash = format!("acme.example/{hash}");
    let new = csi("pv-new", "h-1", &hash)?;
    let old = csi("pv-old", "h-2", "pv/pv-old")?;
    let names = ["git", "pv.ns.vol", "disk", "old", "pv-new", "pv-old", "gone"];
    for (index, name) in names.iter().enumerate() {
        mount("sub", &pod.join(format!("volume-subpaths/{name}/main/{index}")))?;
    }
    let seen = scan(node)?;
    ensure!(seen["leftovers"] == json!([]), "{:#}", seen["leftovers"]);
    ensure!(seen["volumes"].as_array().map(Vec::len) == Some(names.len()), "{seen:#}");
    for volume in seen["volumes"].as_array().into_iter().flatten() {
        ensure!(volume["subPaths"].as_array().map(Vec::len) == Some(1), "{volume:#}");
        ensure!(volume["reconstruction"] == "Partial", "{volume:#}");
    }
    let spec = |path: &Path| -> Result<Value> { Ok(entry(&seen, "volumes", path)?["spec"]["volume"].clone()) };
    ensure!(spec(&git)? == json!({ "name": "git", "gitRepo": {} }), "{:#}", spec(&git)?);
    let told = json!({ "name": "pv", "storageos": { "volumeNamespace": "ns", "volumeName": "vol" } });
    ensure!(spec(&storageos)? == told, "{:#}", spec(&storageos)?);
    ensure!(spec(&azure)? == json!({ "name": "disk", "azureDisk": { "kind": "Managed" } }), "{:#}", spec(&azure)?);
    ensure!(entry(&seen, "volumes", &azure)?["uniqueName"].is_null(), "a checksum tells no name");
    // Two ways to take it apart are none.
    ensure!(spec(&oldest)? == json!({ "name": "old", "rbd": {} }), "{:#}", spec(&oldest)?);
    ensure!(spec(&gluster)? == json!({ "name": "gone", "glusterfs": {} }), "{:#}", spec(&gluster)?);
    for (path, handle) in [(&new, "h-1"), (&old, "h-2")] {
        let found = entry(&seen, "volumes", path)?;
        let unique = format!("kubernetes.io/csi/acme.example^{handle}");
        ensure!(found["uniqueName"] == unique.as_str() && found["record"] == "Foreign", "{found:#}");
        let mut devices = seen["devices"].as_array().into_iter().flatten();
        let device = devices.find(|device| device["uniqueName"] == unique.as_str()).context("no device")?;
        ensure!(device["users"] == json!([POD]) && found["devicePath"] == device["path"], "{device:#}\n{found:#}");
    }
    Ok(Verdict::Passed)
}

fn sha256(text: &str) -> Option<String> {
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .ok()?;
    std::io::Write::write_all(&mut child.stdin.take()?, text.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    String::from_utf8(output.stdout).ok()?.split(' ').next().map(str::to_owned)
}

fn sockets(node: &mut Node) -> Result<Verdict> {
    let at = |rel: &str| node.root.join(rel);
    for folder in ["plugins_registry/deeper", "plugins/acme.example"] {
        std::fs::create_dir_all(at(folder))?;
    }
    let listen = |rel: &str| std::os::unix::net::UnixListener::bind(at(rel)).with_context(|| rel.to_owned());
    let living = listen("plugins_registry/living-reg.sock")?;
    for gone in ["plugins_registry/gone-reg.sock", "plugins_registry/deeper/gone.sock", "plugins/acme.example/csi.sock"]
    {
        drop(listen(gone)?);
    }
    std::os::unix::fs::symlink(at("plugins_registry/gone-reg.sock"), at("plugins_registry/link.sock"))?;
    std::fs::write(at("plugins_registry/file"), "")?;
    let seen = scan(node)?;
    let left = seen["leftovers"].as_array().context("no list")?;
    ensure!(left.len() == 3 && left.iter().all(|l| l["kind"] == "Socket" && codes(l) == ["SocketLeft"]), "{left:#?}");
    entry(&seen, "leftovers", &at("plugins/acme.example/csi.sock"))?;
    // They are no volume's: nothing keeps a node from being clean.
    let plan = node.run(&["clean", "-o", "json"])?.json()?;
    ensure!(plan["kept"] == json!([]) && plan["steps"] == json!([]), "{plan:#}");
    let told = node.run(&["explain", &at("plugins_registry/gone-reg.sock").display().to_string()])?;
    ensure!(told.stdout.contains("SocketLeft"), "{told:?}");
    drop(living);
    Ok(Verdict::Passed)
}

/// What a kubelet makes of a pod with an emptyDir on the disk and a configMap.
fn plain_folders(node: &mut Node) -> Result<Verdict> {
    node.apply(
        "web.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: test, uid: {POD}}}\nspec:\n  containers:\n  - \
             {{name: main, image: example.org/main}}\n  volumes:\n  - {{name: scratch, emptyDir: {{}}}}\n  - {{name: config, \
             configMap: {{name: web}}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web, namespace: \
             test}}\ndata: {{key: value}}\n"
        ),
    )?;
    for pod in [POD, OTHER] {
        let pod = node.root.join("pods").join(pod);
        let scratch = pod.join("volumes/kubernetes.io~empty-dir/scratch");
        let config = pod.join("volumes/kubernetes.io~configmap/config");
        let data = config.join("..2026_12_03_00_00_00.1");
        std::fs::create_dir_all(&scratch)?;
        std::fs::create_dir_all(&data)?;
        std::fs::write(scratch.join("file"), "the pod's")?;
        std::fs::write(data.join("key"), "value")?;
        std::os::unix::fs::symlink("..2026_12_03_00_00_00.1", config.join("..data"))?;
        std::os::unix::fs::symlink("..data/key", config.join("key"))?;
        for marker in ["scratch", "wrapped_config"] {
            let folder = pod.join("plugins/kubernetes.io~empty-dir").join(marker);
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("ready"), "")?;
        }
    }
    let both = node.scan()?.expect(3)?.json()?;
    for volume in both["volumes"].as_array().context("no volumes")? {
        ensure!(codes(volume).is_empty() && volume["state"] == "Mounted", "{volume:#}");
        let wanted = if volume["pod"]["uid"] == POD { "Yes" } else { "No" };
        ensure!(volume["wanted"] == wanted, "{volume:#}");
    }
    std::fs::rename(node.root.join("pods").join(OTHER), node.host().join("gone"))?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(scan["volumes"].as_array().is_some_and(|all| all.len() == 2), "{scan:#}");
    let pods = node.pods().display().to_string();
    node.run(&["wait", "--for=settled", "--timeout", "5s", "--manifests", &pods])?.expect(0)?;
    Ok(Verdict::Passed)
}
