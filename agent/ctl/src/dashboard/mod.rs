//! `dashboard`: the node on a screen that stays, through reboots.
//!
//! ```text
//! node ─► session (answers, lines) ─► events ─► DashboardModel ─► screen
//!                                                      └────────► page (`web`)
//! ```
//! In: a way to a node. Out: screens or a page, until Ctrl-C. Invariants: answers and lines have one connection, so both are new after
//! it is lost; the node is tried again for ever once it has answered; the terminal is left as it was, also after a signal or a panic;
//! events that nobody draws yet are at most [`EVENTS_MAX`], and keep the node's journal waiting.

mod model;
mod web;

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::panic;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use orlop_proto::node_api::v1alpha1::logs_client::LogsClient;
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{GetRequest, LogLine, ReadRequest};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Streaming;

use crate::commands::{Verdict, within, write};
use crate::failure::{self, CtlError};
use crate::target::{NodeChannel, Target};

use model::{DashboardEvent, DashboardModel, KINDS, ScreenSize};

/// Events that nobody has drawn.
const EVENTS_MAX: usize = 64;
/// Pause before the node is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Time between two screens of a terminal.
const REDRAW: Duration = Duration::from_millis(500);
/// Lines of the journal at the beginning.
const FIRST_LINES: u32 = 50;
/// A screen whose size is not known, and one that goes to a file.
const USUAL: ScreenSize = ScreenSize { rows: 24, columns: 80 };
const PLAIN: ScreenSize = ScreenSize { rows: 50, columns: 200 };
/// The other screen of a terminal without a cursor, and back (xterm: modes 1049 and 25).
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// To the first line; clears to the end of a line; clears what is below (ECMA-48: CUP, EL, ED).
const HOME: &str = "\u{1b}[H";
const LINE_END: &str = "\u{1b}[K\r\n";
const BELOW: &str = "\u{1b}[J";

/// How it is shown.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Time between two questions to the node, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Ends after so many screens
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Shows the node as a page for browsers on this machine; prints its address
    #[arg(long, conflicts_with = "number")]
    web: bool,
    /// Address of the page, a loopback one; without it 127.0.0.1 and a free port
    #[arg(long, value_name = "ADDRESS:PORT", requires = "web", value_parser = loopback)]
    listen: Option<SocketAddr>,
}

/// The address of a page: it is for the users of this machine, by their browsers.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| format!("{text:?} is no address with a port, such as 127.0.0.1:8080"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!("{} is not a loopback address, and the page is for this machine alone", address.ip()))
}

/// What the node is asked, how long for an answer, and how often.
#[derive(Clone, Copy, Debug)]
struct NodeQuestion {
    kinds: &'static [&'static str],
    limit: Duration,
    every: Duration,
}

/// Shows the node until Ctrl-C, or until there were enough screens.
pub(crate) async fn run(target: &Target, limit: Duration, args: &DashboardArgs) -> Result<Verdict, CtlError> {
    let every = Duration::from_secs(args.every);
    if args.web {
        return web::run(target, NodeQuestion { kinds: &web::KINDS, limit, every }, args.listen).await;
    }
    let asking = NodeQuestion { kinds: &KINDS, limit, every };
    let (events, drawn) = mpsc::channel(EVENTS_MAX);
    // Before the other screen: nothing may end the program without the way back.
    let mut ends = EndSignals::new()?;
    let terminal = if io::stdout().is_terminal() { Some(TerminalScreen::enter()?) } else { None };
    let model = DashboardModel::new(target.to_string());
    tokio::select! {
        // Cancel-safe, all of them: the program ends.
        error = watch(target, asking, &events) => Err(error),
        result = draw(model, drawn, terminal.as_ref(), every, args.number) => result.map(|()| Verdict::Fine),
        () = ends.come() => Ok(Verdict::Fine),
    }
}

/// Asks for ever. It ends if the first answer is one that does not change.
async fn watch(target: &Target, asking: NodeQuestion, events: &mpsc::Sender<DashboardEvent>) -> CtlError {
    let mut request = ReadRequest { follow: true, lines: FIRST_LINES, ..ReadRequest::default() };
    let mut has_answered = false;
    loop {
        let error = match target.connect(asking.limit).await {
            Ok(channel) => session(channel, asking, &mut request, &mut has_answered, events).await,
            Err(error) => error,
        };
        // A missing key file, a key that the node does not know.
        if !has_answered && (error.exit_code() == failure::USAGE || error.is_not_allowed()) {
            return error;
        }
        say(events, DashboardEvent::Away(error.to_string())).await;
        sleep_until(Instant::now() + RETRY).await;
    }
}

/// One connection: answers and lines, until an answer does not come.
async fn session(
    channel: NodeChannel,
    asking: NodeQuestion,
    request: &mut ReadRequest,
    has_answered: &mut bool,
    events: &mpsc::Sender<DashboardEvent>,
) -> CtlError {
    tokio::select! {
        // Cancel-safe: what is dropped is a call, and the cursor is that of the last line that was passed on.
        error = answers(channel.clone(), asking, has_answered, events) => error,
        never = follow(channel, asking.limit, request, events) => match never {},
    }
}

async fn answers(
    channel: NodeChannel,
    asking: NodeQuestion,
    has_answered: &mut bool,
    events: &mpsc::Sender<DashboardEvent>,
) -> CtlError {
    let mut client = NodeClient::new(channel);
    loop {
        let next = Instant::now() + asking.every;
        let kinds = asking.kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let request = GetRequest { kinds, names: Vec::new() };
        match within(asking.limit, "the node", client.get(request)).await {
            Ok(answer) => say(events, DashboardEvent::Answer(answer)).await,
            Err(error) => return error,
        }
        *has_answered = true;
        sleep_until(next).await;
    }
}

/// Lines of the journal. One that cannot be read is tried again, and costs no answer.
async fn follow(
    channel: NodeChannel,
    limit: Duration,
    request: &mut ReadRequest,
    events: &mpsc::Sender<DashboardEvent>,
) -> Infallible {
    let mut client = LogsClient::new(channel);
    loop {
        let read = within(limit, "the node", client.read(request.clone())).await;
        let ended = match read {
            Ok(lines) => pass_on(lines, request, events).await,
            Err(error) => Err(error),
        };
        // A journal that was lost with its disk does not know the cursor.
        if ended.is_err_and(|error| !error.is_lost_connection()) {
            (request.after_cursor, request.lines) = (String::new(), FIRST_LINES);
        }
        sleep_until(Instant::now() + RETRY).await;
    }
}

/// Lines until there are no more; the request then begins after the last one.
async fn pass_on(
    mut lines: Streaming<LogLine>,
    request: &mut ReadRequest,
    events: &mpsc::Sender<DashboardEvent>,
) -> Result<(), CtlError> {
    while let Some(line) = lines.message().await.map_err(CtlError::Refused)? {
        let cursor = line.cursor.clone();
        say(events, DashboardEvent::Line(line)).await;
        if !cursor.is_empty() {
            (request.after_cursor, request.lines) = (cursor, 0);
        }
    }
    Ok(())
}

async fn say(events: &mpsc::Sender<DashboardEvent>, event: DashboardEvent) {
    // The receiver lives as long as the screen, which ends the program.
    let _ = events.send(event).await;
}

/// Draws the screen again and again.
async fn draw(
    mut model: DashboardModel,
    mut events: mpsc::Receiver<DashboardEvent>,
    terminal: Option<&TerminalScreen>,
    every: Duration,
    number: Option<u64>,
) -> Result<(), CtlError> {
    let began = Instant::now();
    let period = if terminal.is_some() { REDRAW } else { every };
    let (mut next, mut shown) = (began + period, 0);
    loop {
        // Cancel-safe: an event that has not come stays in the channel.
        if let Ok(Some(event)) = timeout_at(next, events.recv()).await {
            model.take(event, began.elapsed());
            if Instant::now() < next {
                continue;
            }
        }
        let size = terminal.map_or(PLAIN, |_| size());
        let lines = model.screen(began.elapsed(), size);
        match terminal {
            Some(_) => write(&format!("{HOME}{}{BELOW}", lines.join(LINE_END)))?,
            None => write(&format!("{}\n\n", lines.join("\n")))?,
        }
        shown += 1;
        if number.is_some_and(|number| shown >= number) {
            return Ok(());
        }
        next = Instant::now() + period;
    }
}

/// Ctrl-C, the end of the terminal, and the wish of whoever started the program.
struct EndSignals {
    interrupt: Signal,
    hangup: Signal,
    terminate: Signal,
}

impl EndSignals {
    fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the first one.
    async fn come(&mut self) {
        // Cancel-safe, all of them: a signal that has not come is waited for again.
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The other screen of the terminal, as long as it lives.
struct TerminalScreen;

impl TerminalScreen {
    fn enter() -> Result<TerminalScreen, CtlError> {
        // A panic may abort the program, and then nothing is dropped.
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            let _ = write(LEAVE);
            usual(panicked);
        }));
        write(ENTER)?;
        Ok(TerminalScreen)
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs no way back.
        let _ = write(LEAVE);
    }
}

/// The terminal's size, by stty: this program has no unsafe code, and no crate that asks the kernel for it.
fn size() -> ScreenSize {
    let asked = File::open("/dev/tty")
        .and_then(|terminal| Command::new("stty").arg("size").stdin(terminal).stderr(Stdio::null()).output());
    asked.ok().and_then(|output| parsed(&String::from_utf8_lossy(&output.stdout))).unwrap_or(USUAL)
}

/// `ROWS COLUMNS`.
fn parsed(text: &str) -> Option<ScreenSize> {
    let (rows, columns) = text.trim().split_once(' ')?;
    let size = ScreenSize { rows: rows.parse().ok()?, columns: columns.parse().ok()? };
    // A serial console says 0 0.
    (size.rows > 0 && size.columns > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_terminals() {
        assert_eq!(parsed("50 132\n"), Some(ScreenSize { rows: 50, columns: 132 }));
        for other in ["", "0 0\n", "50", "x y"] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn a_page_is_for_this_machine_alone() {
        for own in ["127.0.0.1:0", "127.0.0.2:80", "[::1]:8080"] {
            assert_eq!(loopback(own).map(|address| address.to_string()), Ok(own.to_owned()));
        }
        for other in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[::ffff:127.0.0.1]:80"] {
            assert!(loopback(other).unwrap_err().contains("is not a loopback address"), "{other}");
        }
        for odd in ["", "127.0.0.1", "localhost:80", "127.0.0.1:x"] {
            assert!(loopback(odd).unwrap_err().contains("is no address with a port"), "{odd}");
        }
    }
}
