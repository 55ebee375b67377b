//! A real Chromium, driven through its debugging pipe. Also used by `xtask` for the picture in the README.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// How long it may take to answer; a machine that builds something else at the same time is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// It has no sandbox, since tests run as root, and is kept from using the network for itself.
const FLAGS: &[&str] = &[
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
    // Whatever it asks for nonetheless goes nowhere.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
];

/// A browser with one tab. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// What was asked for since the last [`Browser::open`], the page itself included.
    pub(crate) requests: Vec<String>,
    /// What the page's scripts complained of since then.
    pub(crate) complaints: Vec<String>,
    loaded: bool,
}

/// How a page is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// Width in CSS pixels.
    pub(crate) width: u32,
    /// Height in CSS pixels.
    pub(crate) height: u32,
    /// Pixels of the picture to a CSS pixel.
    pub(crate) scale: u32,
    /// Whether it is a phone.
    pub(crate) mobile: bool,
    /// Whether the user prefers dark pages.
    pub(crate) dark: bool,
    /// Whether scripts run.
    pub(crate) scripts: bool,
}

impl Browser {
    /// Where Chromium is; none if it is not installed.
    pub(crate) fn find() -> Option<PathBuf> {
        let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        paths.find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
    }

    /// Starts it, with a profile in this folder.
    pub(crate) fn start(chromium: &Path, folder: &Path) -> Result<Self> {
        // It reads commands from descriptor 3 and answers on 4; a shell puts our pipes there.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"]).arg(chromium).args(FLAGS);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display())).arg("about:blank");
        command.env("HOME", folder).env("XDG_CONFIG_HOME", folder).env("XDG_CACHE_HOME", folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start Chromium")?;
        let (to, from) = (child.stdin.take().context("no pipe")?, child.stdout.take().context("no pipe")?);
        let (send, receive) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0) {
                let Ok(value) = message.map_err(drop).and_then(|m| serde_json::from_slice(&m).map_err(drop)) else {
                    return;
                };
                if send.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from: receive,
            session: None,
            number: 0,
            requests: Vec::new(),
            complaints: Vec::new(),
            loaded: false,
        };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach)?;
        browser.session = Some(attached["sessionId"].as_str().context("no session")?.to_owned());
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method of the protocol and answers its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        self.to.write_all(&[message.to_string().as_bytes(), &[0]].concat()).context("Chromium does not listen")?;
        let end = Instant::now() + PATIENCE;
        loop {
            let message = self.receive(end).with_context(|| format!("no answer to {method}"))?;
            if message["id"] == self.number {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
        }
    }

    fn receive(&mut self, end: Instant) -> Result<Value> {
        let message = self.from.recv_timeout(end.saturating_duration_since(Instant::now()));
        let message = message.context("Chromium ended or hangs")?;
        let params = &message["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => self.requests.push(text(&params["request"]["url"])),
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(text(&params["entry"]["text"])),
            Some("Page.javascriptDialogOpening") => bail!("a dialog opened: {params}"),
            Some("Page.loadEventFired") => self.loaded = true,
            _ => {}
        }
        Ok(message)
    }

    /// Opens a file on such a screen, and waits until it is there.
    pub(crate) fn open(&mut self, file: &Path, screen: Screen) -> Result<()> {
        let Screen { width, height, scale, mobile, dark, scripts } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile });
        self.call("Emulation.setDeviceMetricsOverride", &metrics)?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }))?;
        self.call("Emulation.setScriptExecutionDisabled", &json!({ "value": !scripts }))?;
        self.requests.clear();
        self.complaints.clear();
        self.loaded = false;
        let url = format!("file://{}", file.display());
        let result = self.call("Page.navigate", &json!({ "url": url }))?;
        ensure!(result["errorText"].is_null(), "cannot open {url}: {result}");
        let end = Instant::now() + PATIENCE;
        while !self.loaded {
            self.receive(end).context("the page does not load")?;
        }
        Ok(())
    }

    /// The value of an expression on the page, waited for if it is a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params)?;
        ensure!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Presses the mouse's button on the first element that a selector names.
    pub(crate) fn click(&mut self, selector: &str) -> Result<()> {
        let quoted = json!(selector);
        let at = self.value(&format!(
            "(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ))?;
        for what in ["mousePressed", "mouseReleased"] {
            let params = json!({ "type": what, "x": at[0], "y": at[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &params)?;
        }
        Ok(())
    }

    /// Types a text into what has the focus.
    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", &json!({ "text": text })).map(drop)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // It ends its own children if it is asked; a kill would leave them for a moment.
        let _ = self.call("Browser.close", &json!({}));
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
