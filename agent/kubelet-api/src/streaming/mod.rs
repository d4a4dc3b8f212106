//! streaming: parses requests for exec, attach and port-forward.
//!
//! In: decoded pairs of a query, headers of a request. Out: [`StreamOptions`], ports, the route of a stream.
//! Most streams pass through the node unchanged; [`channels`] and [`tunnel`] translate the others. Upstream:
//! cri-streaming/pkg/streaming/{remotecommand,portforward}, pkg/kubelet/server/server.go.

pub mod channels;
pub mod spdy;
pub mod tunnel;
pub mod upgrade;
pub mod websocket;

/// What stands between a client's WebSocket and a runtime's connection. Pure; the shell moves the bytes.
///
/// All bytes to send are appended to the given buffer; the shell sends it before it reads more from the same side, so a
/// slow reader slows its writer and nothing is kept here.
pub trait Bridge: Send + 'static {
    /// Appends the first bytes for the runtime.
    fn begin(&mut self, to_runtime: &mut Vec<u8>);
    /// Whether the client may be read from.
    fn is_open(&self) -> bool;
    /// Bytes of the client; they are changed on the way.
    fn client_sent(&mut self, bytes: &mut [u8], to_runtime: &mut Vec<u8>);
    /// Bytes of the runtime.
    fn runtime_sent(&mut self, bytes: &[u8], to_client: &mut Vec<u8>);
    /// The runtime will send no more.
    fn runtime_ended(&mut self, to_client: &mut Vec<u8>);
    /// True if all requested outputs have ended, and the runtime has not reported the end of the command yet.
    fn awaits_end(&self) -> bool {
        false
    }
    /// Gives up waiting: the runtime takes no input and will not report the end of the command
    /// ([`Bridge::awaits_end`]).
    fn give_up(&mut self, to_client: &mut Vec<u8>) {
        self.runtime_ended(to_client);
    }
    /// Appends replies to the client: answers to pings, a Close.
    fn due_to_client(&mut self, to_client: &mut Vec<u8>);
    /// Appends replies to the runtime.
    fn due_to_runtime(&mut self, to_runtime: &mut Vec<u8>);
    /// True if the client got everything, its Close included: the stream is over.
    fn is_done(&self) -> bool;
}

/// Options of exec and attach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The command (exec only), one argument each.
    pub command: Vec<String>,
    /// The client sends input.
    pub stdin: bool,
    /// The client wants output.
    pub stdout: bool,
    /// The client wants errors by themselves.
    pub stderr: bool,
    /// True for a terminal, which has one output only.
    pub tty: bool,
}

/// Why a query is none: 400 with these words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Nothing would flow.
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStream,
    /// A port that is none.
    #[error("unable to parse {0:?} as a port")]
    Port(String),
}

impl StreamOptions {
    /// Reads the query of exec or attach.
    ///
    /// # Errors
    /// The query requests no stream.
    pub fn from_query<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<StreamOptions, StreamError> {
        let mut options = StreamOptions::default();
        for (key, value) in pairs {
            match key {
                "command" => options.command.push(value.to_owned()),
                "input" => options.stdin = value == "1",
                "output" => options.stdout = value == "1",
                "error" => options.stderr = value == "1",
                "tty" => options.tty = value == "1",
                _ => {}
            }
        }
        options.stderr &= !options.tty;
        if options.stdin || options.stdout || options.stderr {
            Ok(options)
        } else {
            Err(StreamError::NoStream)
        }
    }
}

/// Ports of a port-forward over plain WebSocket; SPDY names them in its streams, so there may be none.
///
/// # Errors
/// A value that is no port.
pub fn ports<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<u16>, StreamError> {
    let values = pairs.into_iter().filter(|(key, _)| *key == "port").flat_map(|(_, value)| value.split(','));
    values
        .map(|value| match value.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(StreamError::Port(value.to_owned())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
        query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    #[test]
    fn options_of_kubectl() {
        let exec =
            StreamOptions::from_query(pairs("command=ls&command=-l&input=1&output=1&error=1")).unwrap();
        assert_eq!(exec.command, ["ls", "-l"]);
        assert!(exec.stdin && exec.stdout && exec.stderr && !exec.tty);
        let tty = StreamOptions::from_query(pairs("output=1&error=1&tty=1")).unwrap();
        assert!(tty.tty && tty.stdout && !tty.stderr, "a terminal has one output");
        for none in ["", "command=ls", "output=0&input=true", "tty=1&error=1"] {
            assert_eq!(StreamOptions::from_query(pairs(none)), Err(StreamError::NoStream), "{none}");
        }
    }

    #[test]
    fn ports_of_web_sockets() {
        assert_eq!(ports(pairs("port=80&port=443,8080")), Ok(vec![80, 443, 8080]));
        assert_eq!(ports(pairs("x=1")), Ok(Vec::new()));
        for wrong in ["port=", "port=0", "port=65536", "port=80,x"] {
            assert!(ports(pairs(wrong)).is_err(), "{wrong}");
        }
    }
}
