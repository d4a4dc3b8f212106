//! `orlop-image boot`: builds if needed, boots the disk in QEMU on a throw-away overlay, shows the ledger and the
//! sample pod's output.
//!
//! ```text
//! QEMU ── console ──────► lines ─┐
//!      ── host channel ─► lines ─┼─► one channel ─► screen (pure view) ─► stdout
//!      ── exit ──────────────────┤
//! Ctrl-C ────────────────────────┘
//! ```
//! The console is only shown: no user can log in there. The terminal's settings are never changed, and what the
//! console says cannot change them either.

mod machine;
mod screen;
mod ways;

use crate::build::{Builder, Options};
use crate::export::read_config;
use crate::host::tools;
use crate::profile::{Dirs, Profile};
use crate::qemu::{Network, PortForward};
use anyhow::{Context, Result};
use machine::{Event, Running};
use screen::{Screen, ScreenMarker};
use std::io::Write;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};
use ways::GuestWays;

/// Arguments of `boot`.
#[derive(clap::Args)]
pub struct BootArgs {
    /// Power off after the sample pod's output and exit
    #[arg(long)]
    once: bool,
    /// Hand kernel and initrd over directly instead of booting through firmware and boot loader
    #[arg(long)]
    direct: bool,
    /// Which image; `test` has a root shell on the second serial port
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Boot the image as it was last built
    #[arg(long)]
    no_build: bool,
    /// Seconds until the sample pod must have spoken, or the node agent must be ready
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Memory of the machine, MiB
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Your NodeConfig in place of the sample pod's; the machine reaches your network, and this machine at 10.0.2.2
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    config: Option<PathBuf>,
    /// A TCP port of this machine's 127.0.0.1 that leads to a port of the node; may be given again
    #[arg(long, value_name = "HOST_PORT:GUEST_PORT", conflicts_with = "once")]
    forward: Vec<PortForward>,
    /// Open the management API to this machine, and print the `orlopctl` line for it: port 10270, or that of `--forward PORT:10270`
    #[arg(long, conflicts_with = "once")]
    api: bool,
}

/// The sample pod; the node's name is appended to it.
const POD: &str = "default/hello";
/// How long a guest may take to power off.
const POWER_OFF_WITHIN: Duration = Duration::from_secs(90);
/// After so long the button is pressed once more.
const PRESS_AGAIN: Duration = Duration::from_secs(10);

/// Runs it.
///
/// # Errors
/// Options contradict each other, the build fails, QEMU cannot be started, or the pod does not speak in time.
pub fn run(dirs: &Dirs, args: &BootArgs) -> Result<ExitCode> {
    // Before the build, which takes minutes.
    let own = args.config.as_deref().map(read_config).transpose()?;
    let log = dirs.cache.join("image/host.log");
    std::fs::create_dir_all(dirs.cache.join("image"))?;
    let network = if own.is_some() { Network::Host } else { Network::Nowhere };
    let document = own.map_or_else(|| node_config(dirs), Ok)?;
    let (ways, config) =
        GuestWays::open(&args.forward, args.api, document, &dirs.cache.join("image/boot-admin.key"))?;
    tools::ensure(dirs.arch.facts().emulator.host_tools, &log)?;
    if !args.no_build {
        // An image to look at: a checkout that is older than the archive boots, too.
        let options = Options { accept_moved: true, ..Options::default() };
        Builder::new(dirs.clone(), args.profile, options)?.build()?;
    }
    let setup = machine::Setup {
        arch: dirs.arch,
        image: dirs.output(args.profile),
        scratch: dirs.cache.join("image"),
        direct: args.direct,
        memory_mib: args.memory,
        network,
        forwards: ways.forwards.clone(),
        config,
    };
    let awaited = args.config.is_none().then_some(POD);
    let mut running = Running::start(&setup)?;
    println!("\nbooting {} ({}); console log: {}", args.profile.name(), running.how(), running.console_log());
    if !args.once {
        println!("Ctrl-C ends the machine.");
        if args.profile == Profile::Test {
            println!("root shell: socat -,raw,echo=0 UNIX-CONNECT:{}", running.shell());
        }
    }
    println!("{}", Screen::heading());
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    match watch(&mut running, Some(deadline), awaited)? {
        Watched::Seen => {}
        Watched::Asked => return Ok(interrupted()),
        Watched::Late => {
            eprintln!("{}", running.last_words());
            let missing = awaited.map_or("the node agent was not ready", |_| "the sample pod said nothing");
            anyhow::bail!("{missing} within {} s", args.timeout);
        }
        Watched::Ended(status) => {
            eprintln!("{}", running.last_words());
            anyhow::bail!("the machine ended before the node was up ({status})");
        }
    }
    if args.once {
        return finish(running);
    }
    println!("\nThe node is up. What the console says follows; Ctrl-C ends the machine.");
    show(&ways.lines())?;
    if awaited.is_some() {
        println!("Next: your own pod, `cargo boot -- --config FILE` (docs/start/quickstart.md).");
    }
    running.follow_console();
    if let Watched::Asked = watch(&mut running, None, awaited)? {
        // The way out that was offered.
        say_last("ending the machine");
    }
    Ok(ExitCode::SUCCESS)
}

fn interrupted() -> ExitCode {
    say_last("interrupted; ending the machine");
    // As a shell reports a process that Ctrl-C ended.
    ExitCode::from(130)
}

// The terminal may be gone: then the error does not matter.
fn say_last(words: &str) {
    let _ = writeln!(std::io::stdout(), "\n{words}");
}

fn show(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}

/// Why watching ended.
enum Watched {
    /// The pod has spoken, or the agent is ready.
    Seen,
    /// The deadline has passed.
    Late,
    /// QEMU ended.
    Ended(ExitStatus),
    /// We are asked to end.
    Asked,
}

// Shows events until the pod has spoken or the agent is ready (with a deadline), or the machine ends (without).
fn watch(running: &mut Running, deadline: Option<Instant>, awaited: Option<&str>) -> Result<Watched> {
    let mut screen = Screen::new(awaited);
    loop {
        let event = match deadline {
            Some(at) => match running.next(at) {
                Some(event) => event,
                None => return Ok(Watched::Late),
            },
            None => running.next_ever(),
        };
        let (text, wanted) = match event {
            Event::Host(line) => screen.host_line(&line),
            Event::Console(line) => (screen::console_line(&line), ScreenMarker::NotYet),
            Event::Ended(status) => return Ok(Watched::Ended(status)),
            Event::Asked => return Ok(Watched::Asked),
        };
        show(&text)?;
        if wanted == ScreenMarker::Seen && deadline.is_some() {
            return Ok(Watched::Seen);
        }
    }
}

fn finish(mut running: Running) -> Result<ExitCode> {
    let began = Instant::now();
    running.power_button()?;
    let deadline = began + POWER_OFF_WITHIN;
    let mut screen = Screen::new(Some(POD));
    let mut again = began + PRESS_AGAIN;
    while Instant::now() < deadline {
        let Some(event) = running.next(again.min(deadline)) else {
            // The pod does not wait for logind: before that listens, a press is lost. QEMU may be ending: no error.
            let _ = running.power_button();
            again += PRESS_AGAIN;
            continue;
        };
        match event {
            Event::Host(line) => show(&screen.host_line(&line).0)?,
            Event::Console(_) => {}
            Event::Asked => return Ok(interrupted()),
            Event::Ended(_) => {
                show(&format!("\npowered off in {:.1} s\n", began.elapsed().as_secs_f64()))?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    eprintln!("{}", running.last_words());
    anyhow::bail!("the machine did not power off within {} s of its power button", POWER_OFF_WITHIN.as_secs())
}

// The sample pod, as a NodeConfig.
fn node_config(dirs: &Dirs) -> Result<String> {
    let path = dirs.source.join("image/rootfs/common/usr/share/orlop/manifests/hello.yaml");
    let pod = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(screen::node_config(&pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        boot: BootArgs,
    }

    fn parsed(words: &[&str]) -> Result<BootArgs, String> {
        let line = Line::try_parse_from(["boot"].iter().chain(words));
        line.map(|line| line.boot).map_err(|error| error.to_string())
    }

    #[test]
    fn ways_into_the_machine_are_options() {
        let args = parsed(&["--api", "--forward", "8080:80", "--forward", "8443:443"]).expect("understood");
        let forwards: Vec<String> = args.forward.iter().map(ToString::to_string).collect();
        assert_eq!((args.api, forwards.join(" ")), (true, "8080:80 8443:443".to_owned()));
        let args = parsed(&[]).expect("understood");
        assert!(!args.api && args.forward.is_empty());
    }

    #[test]
    fn ways_that_cannot_be_are_refused_by_name() {
        for (words, named) in [
            (&["--forward", "80"][..], ["--forward", "HOST_PORT:GUEST_PORT"]),
            (&["--forward", "8080:0"][..], ["--forward", "GUEST_PORT is \"0\""]),
            // A machine that powers off by itself has nobody to ask.
            (&["--once", "--api"][..], ["--once", "--api"]),
            (&["--once", "--forward", "8080:80"][..], ["--once", "--forward"]),
        ] {
            let said = parsed(words).err().expect("refused");
            assert!(named.iter().all(|name| said.contains(name)), "{words:?}: {said}");
        }
    }
}
