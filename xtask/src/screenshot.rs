//! `cargo xtask screenshot`: the picture of `scan -o html` in the README, from a real node in a private mount namespace.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::browser::{Browser, Screen};
use crate::node::{self, Node, files, mount_tmpfs};
use crate::process::{build_refloat, find_tool, is_real_root, workspace};

/// Arguments of `screenshot`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep the page here too
    #[arg(long)]
    page: Option<std::path::PathBuf>,
}

const SCREEN: Screen = Screen { width: 1080, height: 1800, scale: 1, mobile: false, dark: false, scripts: true };

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(is_real_root(), "it needs root, for a loop device");
    let chromium = Browser::find().context("there is no chromium")?;
    let binary = build_refloat(false)?;
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    node::finish_on_signals()?;
    let mut node = Node::new(&binary)?;
    let page = scene(&mut node)?;
    if let Some(path) = &args.page {
        std::fs::write(path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let file = node.folder().join("page.html");
    std::fs::write(&file, page)?;
    let mut browser = Browser::start(&chromium, node.folder())?;
    browser.open(&file, SCREEN)?;
    let shot = browser.call("Page.captureScreenshot", &json!({ "format": "png" }))?;
    let png = decode(shot["data"].as_str().context("there is no picture")?)?;
    drop(browser);
    let raw = node.folder().join("raw.png");
    std::fs::write(&raw, png)?;
    let target = workspace().join("docs/scan.png");
    match find_tool("pngquant") {
        Some(pngquant) => {
            let mut command = Command::new(pngquant);
            command.args(["--force", "--strip", "--speed=1", "64", "--output"]).arg(&target).arg(&raw);
            crate::process::run(&mut command)?;
        }
        None => std::fs::copy(&raw, &target).map(drop)?,
    }
    println!("written to {}, {} bytes", target.display(), std::fs::metadata(&target)?.len());
    Ok(ExitCode::SUCCESS)
}

/// A shop's node on which some things went wrong; answers the page of its scan.
fn scene(node: &mut Node) -> Result<String> {
    // The paths that a real node has; what lies there on this machine is hidden from this namespace alone.
    mount_tmpfs(Path::new("/var/lib"), "64m")?;
    node.root = "/var/lib/kubelet".into();
    node.state = "/var/lib/refloat".into();
    for folder in [&node.root, &node.state] {
        std::fs::create_dir(folder)?;
    }
    let image = node.folder().join("disk");
    std::fs::File::create(&image)?.set_len(32 << 20)?;
    let disk = node.attach_loop(&image)?;
    let files_of = node.host().join("files");
    std::fs::create_dir(&files_of)?;
    let claim = |name: &str, local: String| {
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-{name}}}\nspec: {{capacity: {{storage: 32Mi}}, accessModes: \
             [ReadWriteOnce], local: {{{local}}}, claimRef: {{namespace: shop, name: {name}}}}}\n---\napiVersion: v1\nkind: \
             PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{accessModes: [ReadWriteOnce], volumeName: \
             pv-{name}, resources: {{requests: {{storage: 32Mi}}}}}}\n---\n"
        )
    };
    node.apply(
        "storage.yaml",
        &(claim("orders", format!("path: {}, fsType: ext4", disk.display()))
            + &claim("files", format!("path: {}", files_of.display()))),
    )?;
    node.apply(
        "settings.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: shop}\ndata: {greeting: hello}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: shop}\nstringData: {token: none}\n",
    )?;
    for (name, mounts, volumes) in [
        (
            "web",
            "{name: scratch, mountPath: /site, subPath: site}",
            "scratch, emptyDir: {}|settings, configMap: {name: settings}|keys, secret: {secretName: keys}|files, persistentVolumeClaim: {claimName: files}",
        ),
        ("orders", "", "data, persistentVolumeClaim: {claimName: orders}|cache, emptyDir: {medium: Memory}"),
        ("reports", "", "orders, persistentVolumeClaim: {claimName: orders}"),
        ("cart", "", "sessions, emptyDir: {medium: Memory}"),
    ] {
        let volumes = volumes.split('|').map(|v| format!("  - {{name: {v}}}\n")).collect::<Vec<_>>().concat();
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  containers: [{{name: main, image: \
             example.org/{name}, volumeMounts: [{mounts}]}}]\n  volumes:\n{volumes}"
        );
        node.apply(&format!("{name}.yaml"), &pod)?;
    }
    let seen = node.once()?.expect(0)?.json()?;
    // The cart's pod is deleted while no manager runs.
    node.delete("cart.yaml")?;
    // Somebody mounts over a volume by hand.
    let path = seen["volumes"].as_array().into_iter().flatten().find(|v| v["volume"] == "cache");
    let path = Path::new(path.and_then(|v| v["path"].as_str()).context("the cache has no path")?);
    crate::process::run(Command::new("mount").arg("--bind").arg(node.host()).arg(path))?;
    // A power cut tore a record.
    let torn = files(&node.state)?.into_iter().map(|file| node.state.join(file)).find(|path| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"PodVolume\"") && text.contains("secret/keys"))
    });
    std::fs::write(torn.context("there is no record of the keys")?, "{\"apiVersion\": \"volu")?;
    // A kubelet left the files of a pod that nobody knows.
    let left = node.root.join("pods/5d1b7c2e-93f4-4a56-8c0d-0f6f2f0f9a11/volumes/kubernetes.io~empty-dir/upload");
    std::fs::create_dir_all(&left)?;
    std::fs::write(left.join("receipt-1.pdf"), "")?;
    // And a disk that it staged for a pod that is gone, whose folder is gone too.
    let stage = node.root.join("plugins/kubernetes.io/gce-pd/mounts/pd-archive");
    std::fs::create_dir_all(&stage)?;
    mount_tmpfs(&stage, "64k")?;
    // And the bind of a block volume whose symlink is gone.
    let map = node.root.join("plugins/kubernetes.io/gce-pd/volumeDevices/pd-raw/5d1b7c2e-93f4-4a56-8c0d-0f6f2f0f9a11");
    std::fs::create_dir_all(map.parent().context("it has no folder")?)?;
    std::fs::write(&map, "")?;
    crate::process::run(Command::new("mount").arg("--bind").arg(&disk).arg(&map))?;
    let pods = node.pods();
    let ran = node.run(&["scan", "-o", "html", "--manifests", pods.to_str().context("not UTF-8")?])?.expect(3)?;
    Ok(ran.stdout)
}

/// Decodes base64.
fn decode(text: &str) -> Result<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("this is no base64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 255) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode("YWI=").unwrap(), b"ab");
        assert_eq!(decode("/+8A").unwrap(), [0xff, 0xef, 0]);
        assert!(decode("a b").is_err());
    }
}
