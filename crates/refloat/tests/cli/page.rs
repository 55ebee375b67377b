//! `scan -o html`: the page, and the page in a real Chromium.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::browser::{Browser, Screen};
use crate::node::{Node, files};
use crate::{Test, Verdict, config_map, pod, secret};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("a_page_stands_alone", stands_alone),
    ("a_page_is_for_scan_alone", scan_alone),
    ("a_page_is_well_in_a_browser", in_a_browser),
    ("a_page_shows_a_node_that_a_kubelet_made", foreign_node),
    ("a_page_works_without_scripts", without_scripts),
    ("a_page_is_filtered", filtered),
    ("a_page_shows_hostile_names_and_runs_none", hostile),
    ("a_page_of_ten_thousand_volumes_is_usable", big),
];

const DESKTOP: Screen = Screen { width: 1280, height: 900, scale: 1, mobile: false, dark: false, scripts: true };
const PHONE: Screen = Screen { width: 360, height: 740, scale: 2, mobile: true, dark: false, scripts: true };

/// Pods with volumes of several kinds, and some trouble: a pod that nobody wants any more, a record that cannot be
/// read, a folder of nobody.
fn set_up(node: &Node) -> Result<()> {
    let disk = node.host().join("disk");
    std::fs::create_dir(&disk)?;
    node.apply("objects.yaml", &format!("{}---\n{}", config_map("c", "one"), secret("s", "hidden-from-all")))?;
    node.apply(
        "storage.yaml",
        &format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-disk}}\nspec: {{capacity: {{storage: 1Mi}}, \
             accessModes: [ReadWriteOnce], local: {{path: {}}}, claimRef: {{namespace: test, name: disk}}}}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: disk, namespace: test}}\nspec: {{accessModes: \
             [ReadWriteOnce], volumeName: pv-disk, resources: {{requests: {{storage: 1Mi}}}}}}\n",
            disk.display()
        ),
    )?;
    let volumes = "  - {name: a, emptyDir: {}}\n  - {name: b, configMap: {name: c}}\n  - {name: c, secret: {secretName: s}}\n  \
                   - {name: d, emptyDir: {medium: Memory}}\n  - {name: e, persistentVolumeClaim: {claimName: disk}}\n";
    node.apply("web.yaml", &pod("web", "[{name: a, mountPath: /a, subPath: x}]", volumes))?;
    node.apply("gone.yaml", &pod("gone", "[]", "  - {name: old, emptyDir: {medium: Memory}}\n"))?;
    node.once()?.expect(0)?;
    node.delete("gone.yaml")?;
    std::fs::create_dir_all(node.root.join("pods/0000-left-over/volumes"))?;
    // The record of one volume is torn.
    for file in files(&node.state)? {
        let path = node.state.join(file);
        if std::fs::read_to_string(&path)
            .is_ok_and(|text| text.contains("\"PodVolume\"") && text.contains("empty-dir/d"))
        {
            std::fs::write(&path, "{ torn")?;
            return Ok(());
        }
    }
    anyhow::bail!("there is no record of the volume d")
}

/// The page of a scan, and where it was put.
fn page(node: &Node) -> Result<(String, PathBuf)> {
    let pods = node.pods();
    let ran = node.run(&["scan", "-o", "html", "--manifests", pods.to_str().context("not UTF-8")?])?;
    ensure!(ran.code == 3 && ran.stderr.is_empty(), "{ran:?}");
    let file = node.folder().join("page.html");
    std::fs::write(&file, &ran.stdout)?;
    Ok((ran.stdout, file))
}

fn stands_alone(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let (text, _) = page(node)?;
    ensure!(
        text.starts_with("<!DOCTYPE html><html lang=\"en\">") && text.trim_end().ends_with("</html>"),
        "{text:.200}"
    );
    for loads in ["<link", "src=", "http://", "https://", "url(", "@import", "<iframe", "<object", "<img"] {
        ensure!(!text.contains(loads), "the page has {loads}");
    }
    ensure!(!text.contains("hidden-from-all"), "a secret is on the page");
    // The same scan gives the same page: only the time differs.
    let without_time = |text: &str| -> Result<String> {
        let (before, rest) = text.split_once("<time ").context("there is no time")?;
        Ok(format!("{before}{}", rest.split_once("</time>").context("there is no time")?.1))
    };
    ensure!(without_time(&text)? == without_time(&page(node)?.0)?, "two scans gave two pages");
    Ok(Verdict::Passed)
}

fn scan_alone(node: &mut Node) -> Result<Verdict> {
    for args in [&["explain", "x"][..], &["node", "--once"], &["record", "list"], &["doctor"], &["version"]] {
        let ran = node.run(&[args, &["-o", "html"]].concat())?.expect(2)?;
        ensure!(ran.stdout.is_empty() && ran.stderr.contains("only scan prints html"), "{args:?}: {ran:?}");
    }
    // A root without anything has a page too.
    let ran = node.run(&["scan", "-o", "html"])?.expect(0)?;
    ensure!(ran.stdout.contains("Nothing is wrong"), "{ran:?}");
    Ok(Verdict::Passed)
}

fn start(node: &Node) -> Result<Result<Browser, Verdict>> {
    match Browser::find() {
        Some(chromium) => Ok(Ok(Browser::start(&chromium, node.folder())?)),
        None => Ok(Err(Verdict::Skipped("there is no chromium".into()))),
    }
}

/// Opens every closed part, also where the browser would not lay out what is far away.
const OPEN_ALL: &str = "document.querySelectorAll('details').forEach(d => { d.open = true; d.style.contentVisibility = \
                        'visible'; })";

/// What is wider than the screen.
const TOO_WIDE: &str = "(() => {
  const wide = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.classList.contains('skip')
    && (e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5));
  const all = document.documentElement.scrollWidth > innerWidth ? ['the page: ' + document.documentElement.scrollWidth] : [];
  return all.concat(wide.map(e => e.outerHTML.slice(0, 200)));
})()";

/// Texts with less contrast than WCAG 2 asks for (level AA: 4.5, 3 for large ones).
const PALE: &str = "(() => {
  const rgba = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
    throw new Error('nothing is behind it'); };
  const pale = [];
  let number = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility() || e.tagName === 'SCRIPT') continue;
    number++;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgba(style.color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) pale.push(contrast.toFixed(2) + ' ' + node.data);
  }
  return { number, pale };
})()";

fn in_a_browser(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let (_, file) = page(node)?;
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    for (name, screen) in [("desktop", DESKTOP), ("phone", PHONE), ("narrow", Screen { width: 320, ..PHONE })] {
        let mut backgrounds = Vec::new();
        for dark in [false, true] {
            browser.open(&file, Screen { dark, ..screen })?;
            let width = browser.value("innerWidth")?;
            ensure!(width == screen.width, "{name}: the page is {width} wide, not {}", screen.width);
            for part in ["closed", "open"] {
                let wide = browser.value(TOO_WIDE)?;
                ensure!(wide == json!([]), "{name}, {part}: wider than the screen: {wide:#}");
                let seen = browser.value(PALE)?;
                ensure!(seen["pale"] == json!([]), "{name}, {part}, dark: {dark}: too little contrast: {seen:#}");
                ensure!(seen["number"].as_u64() > Some(30), "{name}: hardly a text is there: {seen}");
                browser.value(OPEN_ALL)?;
            }
            backgrounds.push(browser.value("getComputedStyle(document.body).backgroundColor")?);
            ensure!(browser.requests.len() == 1, "{name}: it asked for {:?}", browser.requests);
            ensure!(browser.complaints.is_empty(), "{name}: {:?}", browser.complaints);
        }
        ensure!(backgrounds[0] != backgrounds[1], "{name}: dark and light are the same: {backgrounds:?}");
    }
    browser.open(&file, DESKTOP)?;
    // Every heading is in order, every link leads somewhere, every id is there once, every field has a label.
    let faults = browser.value(
        "(() => {
          const faults = [];
          const levels = [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1]);
          if (levels[0] !== 1 || levels.filter(l => l === 1).length !== 1) faults.push('headings ' + levels);
          const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
          if (new Set(ids).size !== ids.length) faults.push('an id is there twice');
          for (const a of document.querySelectorAll('a')) {
            if (!document.getElementById(a.getAttribute('href').slice(1))) faults.push('a dead link: ' + a.outerHTML);
          }
          for (const i of document.querySelectorAll('input')) if (!i.labels.length) faults.push('no label');
          for (const s of document.querySelectorAll('section')) {
            if (!document.getElementById(s.getAttribute('aria-labelledby'))) faults.push('a part without a name');
          }
          if (!document.title || document.documentElement.lang !== 'en') faults.push('no title or language');
          return faults;
        })()",
    )?;
    ensure!(faults == json!([]), "{faults:#}");
    // What needs attention comes first, with its hint.
    let first = browser.value("document.querySelector('main > section').innerText")?;
    let first = first.as_str().unwrap_or_default();
    ensure!(first.starts_with("Needs attention") && first.contains("old of test/gone"), "{first}");
    let order = browser.value("[...document.querySelectorAll('main > section')].map(s => s.id)")?;
    ensure!(order == json!(["attention", "pods", "devices", "leftovers"]), "{order}");
    // A link opens what it leads to.
    browser.value("document.querySelectorAll('#pods details').forEach(d => { d.open = false; })")?;
    browser.value("document.querySelectorAll('#attention details').forEach(d => { d.open = true; })")?;
    browser.click("#attention li a[href^='#v']")?;
    let there = "(async () => { for (let i = 0; i < 100; i++) { const t = document.querySelector(':target'); \
                 if (t && t.checkVisibility()) return true; await new Promise(r => setTimeout(r, 20)); } return false; })()";
    ensure!(browser.value(there)? == true, "a link leads to what cannot be seen");
    Ok(Verdict::Passed)
}

/// Block volumes, what lost its pod, and mounts of nobody, on a node without a record.
fn foreign_node(node: &mut Node) -> Result<Verdict> {
    let pod = node.root.join("pods/9c1914c1-77f4-4a8b-8527-c4e010587966");
    let in_plugins = |rel: &str| node.root.join("plugins/kubernetes.io").join(rel);
    let mount = |at: &std::path::Path| -> Result<()> {
        std::fs::create_dir_all(at)?;
        crate::tool(
            "mount",
            &["-t", "tmpfs", "-o", "size=64k", "disk"]
                .map(OsStr::new)
                .into_iter()
                .chain([at.as_os_str()])
                .collect::<Vec<_>>(),
        )
    };
    // /dev/null and /dev/zero are always there, and bound as any device.
    for (map, device, pv) in [("pd-1", "/dev/null", Some("data")), ("pd-lost", "/dev/zero", None)] {
        let file = in_plugins("gce-pd/volumeDevices").join(map).join(pod.file_name().context("no name")?);
        std::fs::create_dir_all(file.parent().context("no folder")?)?;
        std::fs::write(&file, "")?;
        crate::tool("mount", &["--bind".as_ref(), device.as_ref(), file.as_os_str()])?;
        if let Some(pv) = pv {
            let link = pod.join("volumeDevices/kubernetes.io~gce-pd").join(pv);
            std::fs::create_dir_all(link.parent().context("no folder")?)?;
            std::os::unix::fs::symlink(device, link)?;
        }
    }
    mount(&in_plugins("cinder/mounts/8f3c"))?;
    mount(&node.root.join("plugins_registry/stray"))?;
    mount(&pod.join("volumes/kubernetes.io~nfs/shared"))?;
    let ran = node.run(&["scan", "-o", "html", "--usage"])?.expect(3)?;
    let file = node.folder().join("page.html");
    std::fs::write(&file, &ran.stdout)?;
    for part in
        ["raw block device", "bound for each pod", "8f3c", "BlockMapLeft", "pd-lost", "StaleMount", "of 64Ki used"]
    {
        ensure!(ran.stdout.contains(part), "the page has no {part:?}");
    }
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    for screen in [DESKTOP, PHONE] {
        browser.open(&file, screen)?;
        browser.value(OPEN_ALL)?;
        let wide = browser.value(TOO_WIDE)?;
        ensure!(wide == json!([]), "wider than the screen: {wide:#}");
        let of = |browser: &mut Browser, part: &str| -> Result<String> {
            let text = browser.value(&format!("document.querySelector('#{part}').innerText"))?;
            Ok(text.as_str().unwrap_or_default().to_owned())
        };
        let (pods, devices) = (of(&mut browser, "pods")?, of(&mut browser, "devices")?);
        let (leftovers, attention) = (of(&mut browser, "leftovers")?, of(&mut browser, "attention")?);
        ensure!(pods.contains("data") && pods.contains("device kubernetes.io/gce-pd/pd-1"), "{pods}");
        ensure!(
            devices.contains("No pod is known to use it.") && devices.contains("kubernetes.io/cinder/8f3c"),
            "{devices}"
        );
        ensure!(leftovers.contains("plugins_registry/stray") && leftovers.contains("pd-lost"), "{leftovers}");
        ensure!(attention.contains("BlockMapLeft") && attention.contains("DeviceNotUndone"), "{attention}");
        ensure!(browser.complaints.is_empty() && browser.requests.len() == 1, "{:?}", browser.complaints);
    }
    Ok(Verdict::Passed)
}

fn without_scripts(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let (_, file) = page(node)?;
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    browser.open(&file, Screen { scripts: false, ..DESKTOP })?;
    ensure!(
        browser.value("document.getElementById('filter').checkVisibility()")? == false,
        "a filter that does nothing"
    );
    let state = "document.querySelector('#pods details.pod').open";
    let before = browser.value(state)?;
    browser.click("#pods details.pod > summary")?;
    ensure!(browser.value(state)? != before, "a pod cannot be opened and closed");
    Ok(Verdict::Passed)
}

fn filtered(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let (_, file) = page(node)?;
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    browser.open(&file, DESKTOP)?;
    let seen = "[...document.querySelectorAll('#pods [data-item]')].filter(e => e.checkVisibility())\
                .map(e => e.querySelector('.title').textContent)";
    let settled = |browser: &mut Browser, text: &str| -> Result<Value> {
        let wait = format!(
            "(async () => {{ const w = {}; for (let i = 0; i < 500; i++) {{ \
             const v = document.querySelector('#filter output').value; if (w ? v.startsWith(w) : !v) break; await new Promise(r => setTimeout(r, 20)); }} return {seen}; }})()",
            json!(text)
        );
        browser.value(&wait)
    };
    let all = browser.value(seen)?;
    ensure!(all == json!(["old", "a", "b", "c", "d", "e"]), "{all}");
    browser.click("#filter input[type=search]")?;
    browser.type_text("WEB configmap")?;
    let found = settled(&mut browser, "1 of")?;
    ensure!(found == json!(["b"]), "a filter by pod and plugin finds {found}");
    browser.value("document.querySelector('#filter input').value = ''; document.querySelector('#filter input').dispatchEvent(new Event('input'))")?;
    let all = settled(&mut browser, "")?;
    browser.click("#filter input[type=checkbox]")?;
    let bad = settled(&mut browser, "3 of")?;
    let bad = bad.as_array().context("no list")?;
    ensure!(bad.iter().any(|v| v == "old") && bad.len() == 2, "what needs attention: {bad:?} of {all}");
    Ok(Verdict::Passed)
}

fn hostile(node: &mut Node) -> Result<Verdict> {
    const NAMES: &[&[u8]] = &[
        b"<img src=x onerror=alert(1)>",
        b"\"><svg onload=alert(2)>",
        b"'onmouseover='alert(3)",
        b"&lt;b&gt;",
        b"<!--",
        b"<details open><h3>",
        b"new\nline",
        "a\u{202e}gnp.exe".as_bytes(),
        b"not-utf8-\xff",
        b"javascript:alert(4)",
        b"{{7*7}}${7*7}",
    ];
    let plugin = |pod: &str| node.root.join("pods").join(pod).join("volumes/kubernetes.io~empty-dir");
    for name in NAMES {
        let name = OsStr::from_bytes(name);
        std::fs::create_dir_all(plugin("11111111-0000-4000-8000-000000000000").join(name))?;
        std::fs::create_dir_all(node.root.join("pods").join(name).join("volumes"))?;
        std::fs::create_dir_all(
            node.root.join("pods/11111111-0000-4000-8000-000000000000/volumes").join(name).join("v"),
        )?;
    }
    let (text, file) = page(node)?;
    ensure!(text.contains("&lt;img src=x onerror=alert(1)&gt;"), "the name is not there");
    ensure!(!text.contains('\u{202e}') && text.contains("\\u{202e}"), "a name turns the text around");
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    browser.open(&file, DESKTOP)?;
    browser.value(OPEN_ALL)?;
    let made = browser.value(
        "[...document.querySelectorAll('*')].filter(e => ['IMG', 'H3', 'B', 'IFRAME'].includes(e.tagName) || \
         e.tagName === 'SCRIPT' && e.src || [...e.attributes].some(a => a.name.startsWith('on')) || \
         e.tagName === 'A' && !e.getAttribute('href').startsWith('#')).map(e => e.outerHTML)",
    )?;
    ensure!(made == json!([]), "a name became a part of the page: {made:#}");
    ensure!(browser.value("document.querySelectorAll('script').length")? == 1);
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    ensure!(browser.value(TOO_WIDE)? == json!([]));
    // Should a name ever get through: the page's policy lets nothing of it run.
    browser.value(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\"><p onclick=\"window.ran = 1\" id=evil>'); \
         document.getElementById('evil').click(); const s = document.createElement('script'); s.textContent = 'window.ran = 1'; \
         document.body.append(s); 0",
    )?;
    ensure!(
        browser.value("new Promise(r => setTimeout(() => r(window.ran === undefined), 200))")? == true,
        "the policy lets scripts run"
    );
    Ok(Verdict::Passed)
}

fn big(node: &mut Node) -> Result<Verdict> {
    for pod in 0..1000 {
        for volume in 0..10 {
            let path =
                format!("pods/{pod:08x}-0000-4000-8000-000000000000/volumes/kubernetes.io~empty-dir/volume-{volume}");
            std::fs::create_dir_all(node.root.join(path))?;
        }
    }
    let (text, file) = page(node)?;
    ensure!(text.len() < 16 << 20, "the page has {} bytes", text.len());
    let mut browser = match start(node)? {
        Ok(browser) => browser,
        Err(skipped) => return Ok(skipped),
    };
    for screen in [DESKTOP, PHONE] {
        browser.open(&file, screen)?;
        ensure!(browser.value("document.querySelectorAll('[data-item]').length")?.as_u64() >= Some(10_000));
        // It is short as long as nothing is opened.
        let height = browser.value("document.documentElement.scrollHeight / innerHeight")?;
        ensure!(height.as_f64().is_some_and(|screens| screens < 8.0), "the page has {height} screens");
        ensure!(browser.value(TOO_WIDE)? == json!([]));
    }
    let found = browser.value(
        "(async () => { const q = document.querySelector('#filter input'); q.value = '000003e7 volume-7'; \
         q.dispatchEvent(new Event('input')); const o = document.querySelector('#filter output'); \
         for (let i = 0; i < 1000 && !o.value; i++) await new Promise(r => setTimeout(r, 20)); return o.value; })()",
    )?;
    ensure!(found.as_str().is_some_and(|text| text.starts_with("1 of ")), "{found}");
    Ok(Verdict::Passed)
}
