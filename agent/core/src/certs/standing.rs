//! State of a certificate: the identity for requests, the use of bootstrap credentials, and the sentence for
//! the operator.
//!
//! In: the machine's state and the time. Out: [`CertState`], the sentence to show, [`CertIdentity`].
//! Invariants: a token is used only where the node's own certificate does not work; if neither works they
//! take turns, so that the first one that works again is found.

use agent_types::api_time::text;
use agent_types::certificates::{CertKind, CertTemplate, CertificateFacts};
use agent_types::machine::Outbox;
use agent_types::time::{Now, Wall};

use super::machine::{CertManager, Phase};
use super::{CertAction, CertIdentity, CertState, message};

impl CertManager {
    /// How it stands at `wall`.
    #[must_use]
    pub fn state(&self, wall: Wall) -> CertState {
        let Some(current) = &self.current else { return CertState::Starting };
        if let Some(facts) = current.as_ref().filter(|c| self.is_valid(c, wall)) {
            return CertState::Valid { not_after: facts.not_after };
        }
        let message = match self.sentence(wall) {
            empty if empty.is_empty() => {
                format!("a {} certificate is being asked for", self.config.kind.as_str())
            }
            sentence => sentence,
        };
        let asks = self.clock_wrong.is_none() && self.template().is_some() && self.identity(wall).is_some();
        if asks { CertState::Requesting { message } } else { CertState::Waiting { message } }
    }

    /// What people should know and do; empty if there is nothing.
    fn sentence(&self, wall: Wall) -> String {
        let Some(current) = &self.current else { return String::new() };
        if let Some((_, message)) = &self.clock_wrong {
            return message.clone();
        }
        if self.template().is_none() {
            return message::NO_ADDRESS.to_owned();
        }
        match &self.phase {
            Phase::Approval(_, filed) if !filed.is_overdue() => {}
            Phase::Approval(_, filed) if filed.approved => return message::approved(&filed.name),
            Phase::Approval(_, filed) => return message::pending(self.config.kind, &filed.name),
            _ => {}
        }
        match (current, &self.bootstrap) {
            (None, Some(Err(why))) => message::no_credentials(None, why),
            (Some(c), Some(Err(why))) if !self.is_valid(c, wall) => {
                message::no_credentials(Some(text(c.not_after)), why)
            }
            _ => self.failure.clone().unwrap_or_default(),
        }
    }

    pub(super) fn template(&self) -> Option<CertTemplate> {
        CertTemplate::of(&self.config, &self.addresses)
    }

    /// Identity for the next request; `None` if there is none.
    pub(super) fn identity(&self, wall: Wall) -> Option<CertIdentity> {
        if self.config.kind == CertKind::Serving {
            return Some(CertIdentity::Node);
        }
        let valid = self.current().map(|current| self.is_valid(current, wall));
        match (valid, &self.bootstrap) {
            (Some(true), Some(Ok(()))) if self.refused && !self.is_nodes_turn => {
                Some(CertIdentity::Bootstrap)
            }
            (Some(true), _) => Some(CertIdentity::Node),
            (_, Some(Ok(()))) => Some(CertIdentity::Bootstrap),
            // Expired by this clock: the server's clock decides.
            (Some(false), Some(Err(_))) => Some(CertIdentity::Node),
            (None, Some(Err(_))) | (_, None) => None,
        }
    }

    /// Whether bootstrap credentials are of use; `None` before anything was loaded, and for serving certificates.
    fn wants_bootstrap(&self, wall: Wall) -> Option<bool> {
        let current = self.current.as_ref().filter(|_| self.config.kind == CertKind::Client)?;
        Some(self.refused || !current.as_ref().is_some_and(|c| self.is_valid(c, wall)))
    }

    /// A certificate that has begun is valid until its end by a clock that NTP or the API server vouches for.
    fn is_valid(&self, facts: &CertificateFacts, wall: Wall) -> bool {
        facts.not_before <= wall && (wall < facts.not_after || !self.clock_verified)
    }

    /// Nothing but its end by this clock can be a reason to replace the present certificate.
    pub(super) fn is_good(&self, wanted: &CertTemplate, wall: Wall) -> bool {
        self.current().is_some_and(|c| {
            !self.refused && !c.from_bootstrap && self.is_valid(c, wall) && wanted.unmet(c).is_none()
        })
    }

    /// Sends the shell the sources to look for and the sentence to show, if they changed.
    pub(super) fn tell(&mut self, now: Now, out: &mut Outbox<CertAction>) {
        let wanted = self.wants_bootstrap(now.wall);
        if wanted != self.bootstrap_wanted {
            self.bootstrap_wanted = wanted;
            if let Some(wanted) = wanted {
                if !wanted {
                    self.bootstrap = None;
                }
                out.push(CertAction::Bootstrap { wanted });
            }
        }
        let sentence = self.sentence(now.wall);
        if sentence != self.shown {
            self.shown.clone_from(&sentence);
            out.push(CertAction::Show(sentence));
        }
    }
}
