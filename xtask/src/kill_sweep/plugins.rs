//! Pods with a volume of every plugin, subpaths, two pods on one device, groups; `node --once` is killed.

mod phases;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::scenario::{Data, check_nothing_left, check_volumes, make_ext4, tools_of, volume_path};
use crate::node::Node;
use crate::process::{find_tool, is_real_root};

pub(super) use phases::KIND;

/// What was in the file systems before any pod came.
const HOST_FILE: &str = "the host's\n";
/// What pods write.
const POD_FILE: &str = "the pod's\n";
/// Who exports a folder.
const SERVER: &str = "files.example";
/// The size of the disks, in bytes.
const DISK: u64 = 8 << 20;

/// The scenario on one node.
struct Plugins {
    node: Node,
    /// The devices of the disk with a file system and of the blank one, if devices can be had.
    disks: Option<(PathBuf, PathBuf)>,
    huge_pages: bool,
}

/// A file system image that every run copies, so that it is made once.
fn make_image(path: &Path) -> Result<bool> {
    if !is_real_root() || find_tool("mkfs.ext4").is_none() || find_tool("blkid").is_none() {
        return Ok(false);
    }
    let content = path.with_extension("content");
    std::fs::create_dir(&content)?;
    std::fs::write(content.join("host.txt"), HOST_FILE)?;
    make_ext4(path, DISK, &["-d".as_ref(), content.as_os_str()])?;
    std::fs::remove_file(content.join("host.txt"))?;
    std::fs::remove_dir(content)?;
    Ok(true)
}

impl Plugins {
    /// Sets the stage: folders, disks, manifests of all pods.
    fn new(binary: &Path, image: Option<&Path>) -> Result<Self> {
        let mut node = Node::new(binary)?;
        std::fs::create_dir(node.host().join("files"))?;
        std::fs::create_dir(node.host().join("logs"))?;
        std::fs::write(node.host().join("files/host.txt"), HOST_FILE)?;
        std::fs::write(node.host().join("logs/host.txt"), HOST_FILE)?;
        let disks = match image {
            None => None,
            Some(image) => {
                let full = node.folder().join("full.img");
                std::fs::copy(image, &full).context("cannot copy the image")?;
                let blank = node.folder().join("blank.img");
                File::create(&blank)?.set_len(DISK)?;
                Some((node.attach_loop(&full)?, node.attach_loop(&blank)?))
            }
        };
        // The helper that stands for the one of NFS: it goes on when the manager is killed, as that would.
        let tools = tools_of(&mut node)?;
        refloat_test_support::write_tool(&tools, refloat_test_support::MOUNT_NFS)?;
        let export = node.host().join("export");
        std::fs::create_dir(&export)?;
        let source = format!("{SERVER}:{}", export.display());
        rustix::mount::mount(&source, &export, "tmpfs", rustix::mount::MountFlags::empty(), None)
            .context("cannot mount what a server would export")?;
        std::fs::write(export.join("host.txt"), HOST_FILE)?;
        let huge_pages = disks.is_some() && std::fs::metadata("/sys/kernel/mm/hugepages/hugepages-2048kB").is_ok();
        let plugins = Self { node, disks, huge_pages };
        plugins.apply_all()?;
        Ok(plugins)
    }

    /// Puts all manifests into the folder.
    fn apply_all(&self) -> Result<()> {
        self.apply_objects("one")?;
        for (name, text) in self.pods() {
            self.node.apply(&format!("pod-{name}.yaml"), &text)?;
        }
        Ok(())
    }

    /// The folder that the server exports.
    fn export(&self) -> PathBuf {
        self.node.host().join("export")
    }

    /// The objects that volumes take their content from, and the volumes of claims.
    fn apply_objects(&self, value: &str) -> Result<()> {
        self.node.apply(
            "objects.yaml",
            &format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: config, namespace: test}}\ndata:\n  key: {value}\n  \
                 other: same\n  number-{value}: x\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: secret, namespace: test}}\n\
                 stringData: {{token: token-{value}}}\n"
            ),
        )?;
        let mut text = volume("files", &format!("local: {{path: {}}}", self.node.host().join("files").display()));
        let nfs = format!("nfs: {{server: {SERVER}, path: {}}}\n  mountOptions: [hard]", self.export().display());
        text.push_str(&volume("export", &nfs));
        if let Some((full, blank)) = &self.disks {
            text.push_str(&volume("full", &format!("local: {{path: {}, fsType: ext4}}", full.display())));
            text.push_str(&volume("blank", &format!("local: {{path: {}, fsType: ext4}}", blank.display())));
        }
        self.node.apply("volumes.yaml", &text)
    }

    /// Name and manifest of each pod.
    fn pods(&self) -> Vec<(&'static str, String)> {
        let group = if self.disks.is_some() { "  securityContext: {fsGroup: 4321}\n" } else { "" };
        let on_mismatch = if self.disks.is_some() {
            "  securityContext: {fsGroup: 4321, fsGroupChangePolicy: OnRootMismatch}\n"
        } else {
            ""
        };
        let logs = self.node.host().join("logs");
        let claim = |name: &str| format!("  - {{name: data, persistentVolumeClaim: {{claimName: {name}}}}}\n");
        let mut pods = vec![
            (
                "plain",
                pod(
                    "plain",
                    group,
                    "[{name: scratch, mountPath: /a, subPath: sub/a}, {name: scratch, mountPath: /b, subPath: sub/b}]",
                    "  - {name: scratch, emptyDir: {}}\n",
                ),
            ),
            ("memory", pod("memory", "", "[]", "  - {name: fast, emptyDir: {medium: Memory, sizeLimit: 1Mi}}\n")),
            (
                "config",
                pod(
                    "config",
                    "",
                    "[{name: all, mountPath: /key, subPath: other}]",
                    "  - {name: all, configMap: {name: config, defaultMode: 0640}}\n  \
                     - {name: some, configMap: {name: config, items: [{key: key, path: in/side, mode: 0400}]}}\n  \
                     - {name: maybe, configMap: {name: none, optional: true}}\n",
                ),
            ),
            (
                "secret",
                pod("secret", group, "[]", "  - {name: token, secret: {secretName: secret, defaultMode: 0400}}\n"),
            ),
            (
                "about",
                pod(
                    "about",
                    "",
                    "[]",
                    "  - name: down\n    downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}\n  \
                     - name: all\n    projected:\n      sources:\n      - configMap: {name: config}\n      \
                     - secret: {name: secret}\n      - downwardAPI: {items: [{path: uid, fieldRef: {fieldPath: metadata.uid}}]}\n",
                ),
            ),
            (
                "host",
                pod(
                    "host",
                    "",
                    "[]",
                    &format!("  - {{name: logs, hostPath: {{path: {}, type: Directory}}}}\n", logs.display()),
                ),
            ),
            ("files", pod("files", "", "[{name: data, mountPath: /d, subPath: deep/er}]", &claim("files"))),
            ("export-a", pod("export-a", "", "[{name: data, mountPath: /d, subPath: deep}]", &claim("export"))),
            (
                "export-b",
                pod(
                    "export-b",
                    "",
                    "[]",
                    &format!(
                        "  - {{name: own, nfs: {{server: {SERVER}, path: {}, readOnly: true}}}}\n",
                        self.export().display()
                    ),
                ),
            ),
            (
                "small",
                pod("small", "", "[]", "  - {name: a, emptyDir: {}}\n  - {name: b, configMap: {name: config}}\n"),
            ),
        ];
        if self.huge_pages {
            let requests = "[]\n    resources: {requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 2Mi}}";
            pods.push(("huge", pod("huge", "", requests, "  - {name: pages, emptyDir: {medium: HugePages-2Mi}}\n")));
        }
        if self.disks.is_some() {
            let mounts = "[{name: data, mountPath: /d, subPathExpr: $(NAME)}]";
            pods.push(("full-a", pod("full-a", on_mismatch, mounts, &claim("full"))));
            pods.push((
                "full-b",
                pod("full-b", "", "[]", "  - {name: data, persistentVolumeClaim: {claimName: full, readOnly: true}}\n"),
            ));
            pods.push(("blank", pod("blank", "", "[]", &claim("blank"))));
        }
        pods
    }

    /// What changes in the update.
    fn update(&self) -> Result<()> {
        self.apply_objects("two")
    }

    /// Removes some pods: one of two users of a device, the only user of another, and one of each other kind.
    fn remove_some(&self) -> Result<()> {
        for name in self.removed() {
            self.node.remove(&format!("pod-{name}.yaml"))?;
        }
        Ok(())
    }

    fn removed(&self) -> Vec<&'static str> {
        let mut names = vec!["plain", "memory", "config", "secret", "about", "files", "export-a"];
        if self.disks.is_some() {
            names.extend(["full-a", "blank"]);
        }
        names
    }

    /// Every `pod/volume` that there must be.
    fn expected(&self, some_removed: bool) -> Vec<String> {
        let gone = if some_removed { self.removed() } else { Vec::new() };
        let mut names = Vec::new();
        for (pod, text) in self.pods().iter().filter(|(pod, _)| !gone.contains(pod)) {
            let (_, volumes) = text.split_once("  volumes:\n").expect("every pod has volumes");
            let entries =
                volumes.lines().filter_map(|l| l.strip_prefix("  - ")?.trim_start_matches('{').strip_prefix("name: "));
            names.extend(entries.map(|e| format!("{pod}/{}", e.split([',', '}']).next().unwrap_or(e).trim())));
        }
        names.sort();
        names
    }

    /// Writes what pods write.
    fn write_data(&self) -> Result<()> {
        let scan = self.node.scan()?.json()?;
        for (pod, volume) in self.written() {
            let path = volume_path(&scan, pod, volume)?.join("pod.txt");
            std::fs::write(&path, POD_FILE).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn written(&self) -> Vec<(&'static str, &'static str)> {
        let mut written =
            vec![("plain", "scratch"), ("memory", "fast"), ("small", "a"), ("files", "data"), ("export-a", "data")];
        if self.disks.is_some() {
            written.extend([("full-a", "data"), ("blank", "data")]);
        }
        written
    }

    /// Checks that every volume is mounted exactly once with its data intact, and that a scan finds nothing wrong.
    fn check_all_there(&self, value: &str, some_removed: bool, data: Data) -> Result<()> {
        let ran = self.node.scan()?.expect(0).context("the scan after the restart")?;
        let scan = ran.json()?;
        check_volumes(&self.node, &scan, &self.expected(some_removed))?;
        let gone = if some_removed { self.removed() } else { Vec::new() };
        let there = |pod: &str| !gone.contains(&pod);
        let read = |pod: &str, volume: &str, file: &str| -> Result<String> {
            let path = volume_path(&scan, pod, volume)?.join(file);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        for (pod, volume, file, content) in [
            ("config", "all", "key", value.to_owned()),
            ("config", "some", "in/side", value.to_owned()),
            ("small", "b", "key", value.to_owned()),
            ("about", "all", "token", format!("token-{value}")),
            ("secret", "token", "token", format!("token-{value}")),
            ("about", "down", "name", "about".into()),
            ("files", "data", "host.txt", HOST_FILE.into()),
            ("export-a", "data", "host.txt", HOST_FILE.into()),
            ("export-b", "own", "host.txt", HOST_FILE.into()),
        ] {
            if there(pod) {
                let found = read(pod, volume, file)?;
                ensure!(found == content, "{pod}/{volume}/{file} is {found:?}, not {content:?}");
            }
        }
        if self.disks.is_some() {
            ensure!(read("full-b", "data", "host.txt")? == HOST_FILE, "the disk's own file is not as it was");
            let users = scan["devices"].as_array().context("a scan without devices")?.len();
            ensure!(users == if some_removed { 1 } else { 2 }, "there are other devices: {}", scan["devices"]);
        }
        for (pod, volume) in self.written() {
            let persistent = volume == "data";
            if there(pod) && (data == Data::All || data == Data::Persistent && persistent) {
                ensure!(read(pod, volume, "pod.txt")? == POD_FILE, "{pod}/{volume} lost its data");
            }
        }
        self.check_host()
    }

    /// Checks that nothing is left: no mount, folder, record or used device.
    fn check_all_gone(&self) -> Result<()> {
        check_nothing_left(&self.node)?;
        if let Some((full, blank)) = &self.disks {
            for (device, image) in [(full, "full.img"), (blank, "blank.img")] {
                let found = refloat_mount::loopdev::find(&self.node.folder().join(image))?;
                ensure!(found == [device.clone()], "the disk is attached as {found:?}");
                // Nobody holds it: it can be opened exclusively, as mkfs does.
                let exclusive = rustix::fs::open(
                    device,
                    rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC,
                    rustix::fs::Mode::empty(),
                );
                ensure!(exclusive.is_ok(), "the device {} is still in use", device.display());
            }
        }
        self.check_host()
    }

    fn check_host(&self) -> Result<()> {
        for file in ["files/host.txt", "logs/host.txt", "export/host.txt"] {
            let text = std::fs::read_to_string(self.node.host().join(file)).context("the host lost a file")?;
            ensure!(text == HOST_FILE, "the host's {file} is {text:?}");
        }
        Ok(())
    }
}

/// A volume and the claim that is bound to it.
fn volume(name: &str, source: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-{name}}}\nspec:\n  capacity: {{storage: 8Mi}}\n  \
         accessModes: [ReadWriteMany]\n  {source}\n  claimRef: {{namespace: test, name: {name}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  \
         accessModes: [ReadWriteMany]\n  volumeName: pv-{name}\n  resources: {{requests: {{storage: 8Mi}}}}\n---\n"
    )
}

fn pod(name: &str, more: &str, mounts: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n{more}  containers:\n  \
         - name: main\n    image: example.org/{name}\n    env: [{{name: NAME, value: of-{name}}}]\n    \
         volumeMounts: {mounts}\n  volumes:\n{volumes}"
    )
}
