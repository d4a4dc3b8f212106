//! Whose the port is: one client after another. Pure.
//!
//! In: frames, the ends of the connection and of the host. Out: [`PortAction`]s. Invariants: at most one session is open; a client that
//! begins ends every earlier one; bytes of another session reach nothing.

use orlop_proto::node_api_serial::SerialFrame;

/// The driver's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortAction {
    /// Connects to the server, for this session.
    Connect(u64),
    /// Closes the connection, and forgets the bytes for it.
    Disconnect,
    /// Gives the server these bytes.
    Deliver(Vec<u8>),
    /// Sends a frame to the host.
    Send(SerialFrame),
}

/// The session that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortSession(Option<u64>);

impl PortSession {
    /// A frame has come.
    pub(super) fn heard(&mut self, frame: SerialFrame) -> Vec<PortAction> {
        match frame {
            // The client repeats it because it has not seen the answer.
            SerialFrame::Open { session } if self.0 == Some(session) => {
                vec![PortAction::Send(SerialFrame::Opened { session })]
            }
            SerialFrame::Open { session } => {
                let earlier = self.0.replace(session).map(|_| PortAction::Disconnect);
                earlier.into_iter().chain([PortAction::Connect(session)]).collect()
            }
            SerialFrame::Data { session, bytes } if self.0 == Some(session) => {
                vec![PortAction::Deliver(bytes)]
            }
            // The connection has ended meanwhile, or the program was started again.
            SerialFrame::Data { session, .. } => vec![PortAction::Send(SerialFrame::Close { session })],
            SerialFrame::Close { session } if self.0 == Some(session) => {
                self.0 = None;
                vec![PortAction::Disconnect]
            }
            // An end of what has ended; an answer that only the other end gives.
            SerialFrame::Close { .. } | SerialFrame::Opened { .. } => Vec::new(),
        }
    }

    /// The server has closed the connection, or cannot be reached: the frame for the host.
    pub(super) fn server_closed(&mut self) -> Option<SerialFrame> {
        self.0.take().map(|session| SerialFrame::Close { session })
    }

    /// No client is at the other end.
    pub(super) fn host_gone(&mut self) {
        self.0 = None;
    }

    /// The session of bytes from the server.
    pub(super) fn open(&self) -> Option<u64> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_ends_the_one_before_it_and_a_repeated_beginning_ends_nothing() {
        let mut port = PortSession::default();
        let open = |session| SerialFrame::Open { session };
        let data = |session| SerialFrame::Data { session, bytes: vec![1] };
        assert_eq!(port.heard(open(1)), [PortAction::Connect(1)]);
        assert_eq!(port.heard(open(1)), [PortAction::Send(SerialFrame::Opened { session: 1 })]);
        assert_eq!(port.heard(data(1)), [PortAction::Deliver(vec![1])]);
        assert_eq!(port.heard(open(2)), [PortAction::Disconnect, PortAction::Connect(2)]);
        // What the first client had under way.
        assert_eq!(port.heard(data(1)), [PortAction::Send(SerialFrame::Close { session: 1 })]);
        assert!(port.heard(SerialFrame::Close { session: 1 }).is_empty());
        assert!(port.heard(SerialFrame::Opened { session: 2 }).is_empty());
        assert_eq!(port.open(), Some(2));
        assert_eq!(port.heard(SerialFrame::Close { session: 2 }), [PortAction::Disconnect]);
        assert_eq!((port.open(), port.server_closed()), (None, None));
    }

    #[test]
    fn the_end_of_the_server_and_of_the_host_are_ends_of_the_session() {
        let mut port = PortSession::default();
        port.heard(SerialFrame::Open { session: 5 });
        assert_eq!(port.server_closed(), Some(SerialFrame::Close { session: 5 }));
        assert_eq!(port, PortSession::default());
        port.heard(SerialFrame::Open { session: 6 });
        port.host_gone();
        assert_eq!((port.open(), port.server_closed()), (None, None));
    }
}
