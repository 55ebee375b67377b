//! The pods of the demo, with every plugin of this version.

use std::path::Path;

/// A manifest file: its name and its text.
pub(super) type Manifest = (&'static str, String);

/// What the demo can have on this machine.
#[derive(Debug, Clone)]
pub(super) struct Means {
    /// A blank disk (a loop device).
    pub(super) disk: Option<String>,
    /// Whether files can be given to a group.
    pub(super) groups: bool,
}

/// The settings of the shop: a configMap and a secret. `greeting` is what changes in the story.
pub(super) fn settings(greeting: &str) -> Manifest {
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: shop}}\ndata:\n  greeting: {greeting}\n\
         ---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: keys, namespace: shop}}\nstringData: {{token: only-for-the-demo}}\n"
    );
    ("settings.yaml", text)
}

/// The volumes that claims are bound to: a folder of the host, and a disk if there is one.
pub(super) fn storage(means: &Means, host: &Path) -> Manifest {
    let pair = |name: &str, path: &str, fs_type: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-{name}}}\nspec:\n  capacity: {{storage: 32Mi}}\n  \
             accessModes: [ReadWriteOnce]\n  local: {{path: {path}{fs_type}}}\n  claimRef: {{namespace: shop, name: {name}}}\n\
             ---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
             accessModes: [ReadWriteOnce]\n  volumeName: pv-{name}\n  resources: {{requests: {{storage: 32Mi}}}}\n---\n"
        )
    };
    let mut text = pair("files", &host.join("files").display().to_string(), "");
    if let Some(disk) = &means.disk {
        text.push_str(&pair("orders", disk, ", fsType: ext4"));
    }
    ("storage.yaml", text)
}

fn pod(name: &str, more: &str, mounts: &str, volumes: &str) -> String {
    let mounts = if mounts.is_empty() { "[]" } else { mounts };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}\nspec:\n{more}  \
         containers:\n  - name: main\n    image: example.org/{name}\n    volumeMounts: {mounts}\n  volumes:\n{volumes}"
    )
}

/// The pods that are there from the start.
pub(super) fn pods(means: &Means, host: &Path) -> Vec<Manifest> {
    let group = if means.groups { "  securityContext: {fsGroup: 2000}\n" } else { "" };
    let host = host.join("logs");
    let mut pods = vec![
        (
            "web.yaml",
            pod(
                "web",
                group,
                "[{name: scratch, mountPath: /cache, subPath: cache}]",
                "  - {name: scratch, emptyDir: {}}\n  - {name: config, configMap: {name: settings}}\n",
            ),
        ),
        (
            "login.yaml",
            pod(
                "login",
                "",
                "",
                "  - {name: keys, secret: {secretName: keys, defaultMode: 0400}}\n  \
                 - name: about\n    downwardAPI:\n      items: [{path: name, fieldRef: {fieldPath: metadata.name}}]\n  \
                 - name: all\n    projected:\n      sources:\n      - configMap: {name: settings}\n      - secret: {name: keys}\n",
            ),
        ),
        (
            "report.yaml",
            pod(
                "report",
                "",
                "",
                &format!(
                    "  - {{name: files, persistentVolumeClaim: {{claimName: files}}}}\n  \
                     - {{name: logs, hostPath: {{path: {}, type: Directory}}}}\n",
                    host.display()
                ),
            ),
        ),
        (
            "batch.yaml",
            pod(
                "batch",
                "",
                "",
                "  - {name: work, emptyDir: {}}\n  - {name: fast, emptyDir: {medium: Memory, sizeLimit: 8Mi}}\n  \
                 - {name: config, configMap: {name: settings}}\n",
            ),
        ),
    ];
    if means.disk.is_some() {
        let volume = "  - {name: data, persistentVolumeClaim: {claimName: orders}}\n";
        pods.push(("orders.yaml", pod("orders", group, "", volume)));
        pods.push(("orders-reader.yaml", pod("orders-reader", group, "", volume)));
    }
    pods
}

/// The pod that comes just before the manager is killed: enough volumes that some are still to be made then.
pub(super) fn late_pod() -> Manifest {
    let volumes = (0..18).map(|n| match n % 3 {
        0 => format!("  - {{name: v{n}, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}\n"),
        1 => format!("  - {{name: v{n}, secret: {{secretName: keys}}}}\n"),
        _ => format!("  - {{name: v{n}, configMap: {{name: settings}}}}\n"),
    });
    ("late.yaml", pod("late", "", "", &volumes.collect::<String>()))
}
