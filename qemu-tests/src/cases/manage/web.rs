//! `orlopctl dashboard --web` on this machine, of a VM by TCP, in a real browser: the page has the node, its root and a planted problem,
//! and lives on through a reset of the machine.
//!
//! ```text
//! VM, port 10270 ◄── forwarded port ◄── orlopctl dashboard --web ◄── chromium --headless
//! ```
//! With `ORLOP_UPDATE_SCREENSHOTS=1` the picture of the page becomes `docs/howto/dashboard.png`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::process::Guarded;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::workspace::workspace;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network, config_with_pod};

use super::status::administrator;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/web",
    300,
    "a browser shows the page of orlopctl dashboard --web: name, slot, pod and a planted problem; it lives through a reset",
    web,
)];

/// Set: the picture of the page becomes that of the documentation.
const UPDATE_VARIABLE: &str = "ORLOP_UPDATE_SCREENSHOTS";
const PICTURE: &str = "docs/howto/dashboard.png";
/// The port of the node's API.
const API_PORT: u16 = 10270;
/// What the node says of an agent that was stopped and masked.
const PROBLEM: &str = "the node agent does not run: masked";
/// Until the page has what the node says, under TCG: an answer, and the start of the server.
const SHOWN: Duration = Duration::from_secs(120);
/// Until the page has the new boot: the machine's network, and the retry of a connection that has gone silent.
const SHOWN_AGAIN: Duration = Duration::from_secs(240);
/// A start of the browser, and one page.
const BROWSER: Duration = Duration::from_secs(180);
/// After this the browser shows what it has, also if the page has not said that it is loaded.
const PAGE_LOAD: Duration = Duration::from_secs(90);
/// Between two looks at the page.
const PAUSE: Duration = Duration::from_secs(1);
/// For a connection to the page, and an answer.
const ANSWER: Duration = Duration::from_secs(20);

fn web(cx: &mut CaseContext<'_>) -> Result<()> {
    let (run, artefacts) = (Arc::clone(&cx.run), cx.artefacts.clone());
    let program = built::ctl(&run)?;
    let (_, admin) = administrator(&program, &artefacts)?;
    let config = format!("{}api:\n  admins:\n  {admin}", config_with_pod());
    let mut lab = Lab::new(&run, &artefacts)?;
    lab.reach_host();
    let mut vm = lab.boot(Firmware::Direct, Some(&config))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    let port = free_port()?;
    vm.qmp.forward(port, API_PORT)?;
    let mut way =
        vec!["--timeout".to_owned(), "50".to_owned(), "--tcp".to_owned(), format!("127.0.0.1:{port}")];
    way.extend(["--key".to_owned(), artefacts.join("ops-1.key").display().to_string()]);
    let pin = await_pin(&mut vm, &program, &way)?;
    way.extend(["--node-key".to_owned(), pin]);
    let node = asked(Command::new(&program).args(&way).args(["get", "node", "-o", "name"]))?;
    let name = node.trim().strip_prefix("node/").with_context(|| format!("no name: {node}"))?.to_owned();

    vm.shell()?.must("systemctl mask --runtime kubelet.service && systemctl stop kubelet.service")?;
    let mut command = Command::new(&program);
    command.args(&way).args(["dashboard", "--web", "--every", "2"]);
    let mut page = ServedPage::start(&run, &artefacts, command)?;
    page.await_words(&[PROBLEM, "default/hello"], SHOWN)?;
    let browser = Browser { run, artefacts };
    let shown = browser.shown(&page.url)?;
    for words in [
        format!("<h1 id=\"name\">{name}</h1>"),
        format!("<p id=\"headline\" class=\"faint\">{name}  Orlop "),
        "slot A (vda2)".to_owned(),
        format!("<th scope=\"row\">kubelet.service</th><td>{PROBLEM}</td>"),
        "<th scope=\"row\">default/hello".to_owned(),
        "data-link=\"up\"".to_owned(),
    ] {
        ensure!(shown.contains(&words), "{words:?} is not in the page: {shown}");
    }
    picture(&browser, &page.url)?;

    vm.reset()?;
    page.await_words(&["\"link\":\"away\""], SHOWN)?;
    vm.await_phase("pod.running", BOOT_LIMIT_S).context("after the reset")?;
    page.await_words(&["\"link\":\"up\"", "\"reboots\":1"], SHOWN_AGAIN)?;
    let shown = browser.shown(&page.url)?;
    ensure!(shown.contains(", after 1 reboot</p>"), "the page does not say the reboot: {shown}");
    // The mask was for one boot.
    ensure!(
        !shown.contains(&format!("<td>{PROBLEM}</td>")),
        "the page has the problem of the boot before: {shown}"
    );
    Ok(())
}

/// The fingerprint of the node's key, as a client that knows none prints it. The port may open later than the network.
fn await_pin(vm: &mut Vm, program: &Path, way: &[String]) -> Result<String> {
    let deadline = Instant::now() + SHOWN;
    loop {
        let output = Command::new(program).args(way).arg("version").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("run {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut words = said.split(|c: char| c.is_whitespace() || c == ',');
        if let Some(pin) = words.find(|word| word.starts_with("SHA256:")) {
            return Ok(pin.to_owned());
        }
        ensure!(Instant::now() < deadline, "the node shows no key: {said}");
        vm.shell()?.must("sleep 2")?;
    }
}

fn asked(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    Ok(text.into_owned())
}

/// A port of the loopback that is free now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("look for a free port")?;
    Ok(listener.local_addr().context("ask for the port")?.port())
}

/// The program that serves the page.
struct ServedPage {
    program: Guarded,
    said: PathBuf,
    url: String,
}

impl ServedPage {
    fn start(run: &Arc<Run>, artefacts: &Path, mut command: Command) -> Result<ServedPage> {
        let (address, said) = (artefacts.join("page.address"), artefacts.join("page.stderr"));
        command.stdin(Stdio::null()).stdout(File::create(&address)?).stderr(File::create(&said)?);
        let program = Guarded::spawn(run, &mut command)?;
        let mut page = ServedPage { program, said, url: String::new() };
        let deadline = Instant::now() + SHOWN;
        loop {
            let text = fs::read_to_string(&address).context("read the address of the page")?;
            if let Some(url) = text.strip_suffix('\n') {
                page.url = url.to_owned();
                return Ok(page);
            }
            page.pause()?;
            ensure!(Instant::now() < deadline, "orlopctl does not print an address: {text:?}");
        }
    }

    /// Some time, in which the program goes on.
    fn pause(&mut self) -> Result<()> {
        if let Some(status) = self.program.wait(PAUSE)? {
            let said = fs::read_to_string(&self.said).unwrap_or_default();
            bail!("orlopctl dashboard --web has ended with {status}: {said}");
        }
        Ok(())
    }

    /// Waits until the page has all of these words.
    fn await_words(&mut self, words: &[&str], limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let text = self.text()?;
            if words.iter().all(|word| text.contains(word)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{words:?} are not in the page: {text}");
            self.pause()?;
        }
    }

    /// The page as it is served, with its state.
    fn text(&self) -> Result<String> {
        let rest = self.url.strip_prefix("http://").with_context(|| format!("{} is no URL", self.url))?;
        let (address, path) = rest.split_once('/').with_context(|| format!("{} has no path", self.url))?;
        let mut stream = TcpStream::connect(address).context("connect to the page")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let head = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).context("ask for the page")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).context("read the page")?;
        ensure!(text.starts_with("HTTP/1.1 200 "), "GET {}: {text}", self.url);
        Ok(text)
    }
}

/// Chromium without a screen.
struct Browser {
    run: Arc<Run>,
    artefacts: PathBuf,
}

impl Browser {
    /// The elements of the page, after its script has run.
    fn shown(&self, url: &str) -> Result<String> {
        self.start(&["--dump-dom", url])
    }

    fn start(&self, arguments: &[&str]) -> Result<String> {
        let (dom, said) = (self.artefacts.join("page.dom"), self.artefacts.join("chromium.stderr"));
        let profile = self.artefacts.join("chromium");
        let mut command = Command::new("/usr/bin/chromium");
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--no-proxy-server", "--window-size=1200,1800"]);
        command.arg(format!("--timeout={}", PAGE_LOAD.as_millis()));
        command.arg(format!("--user-data-dir={}", profile.display())).args(arguments);
        command.stdin(Stdio::null()).stdout(File::create(&dom)?).stderr(File::create(&said)?);
        let ended = Guarded::spawn(&self.run, &mut command)?.wait(BROWSER)?;
        // It is made again by the next start.
        let _ = fs::remove_dir_all(&profile);
        let said = || fs::read_to_string(&said).unwrap_or_default();
        match ended {
            Some(status) if status.success() => fs::read_to_string(&dom).context("read the elements"),
            Some(status) => bail!("chromium {arguments:?} ended with {status}: {}", said()),
            None => bail!("chromium {arguments:?} has not ended within {BROWSER:?}: {}", said()),
        }
    }
}

/// The picture of the page, which has something on it.
fn picture(browser: &Browser, url: &str) -> Result<()> {
    let file = browser.artefacts.join("dashboard.png");
    browser.start(&[format!("--screenshot={}", file.display()).as_str(), url])?;
    let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    ensure!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{} bytes are no picture", bytes.len());
    say::line(format!("  picture of the page: {} bytes", bytes.len()));
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        let to = workspace().join(PICTURE);
        fs::write(&to, bytes).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}
