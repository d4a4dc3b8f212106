//! Commands of a TPM 2.0 that extend a PCR. Pure.
//!
//! In: the number of a PCR, an event. Out: the bytes of TPM2_PCR_Event, and what the TPM's answer says. The TPM makes the digest
//! itself, in each of its banks, so init needs no hash. Format: TCG's TPM 2.0 library specification, part 3, 22.3 and 5.2.
//!
//! - PCR 11: `enter-initrd` and `leave-initrd`, the words of systemd-pcrphase, after what the UKI's stub has measured.
//! - PCR 15: each accepted configuration, as `node-config BYTES` and then its text in pieces of [`EVENT_BYTES_MAX`].

/// Phases of the boot.
pub const PCR_PHASES: u32 = 11;
/// What is this node's own.
pub const PCR_NODE: u32 = 15;
/// The initrd begins.
pub const ENTER_INITRD: &[u8] = b"enter-initrd";
/// The initrd hands over to the root.
pub const LEAVE_INITRD: &[u8] = b"leave-initrd";
/// Longest event, bytes (TPM2B_EVENT).
pub const EVENT_BYTES_MAX: usize = 1024;
/// Longest answer, bytes: more than four banks' digests.
pub const ANSWER_BYTES_MAX: usize = 4096;

const TAG_SESSIONS: u16 = 0x8002;
const PCR_EVENT: u32 = 0x0000_013c;
/// The authorisation without a password: TPM_RS_PW, no nonce, no attributes, no password.
const AUTHORISATION: [u8; 9] = [0x40, 0x00, 0x00, 0x09, 0, 0, 0, 0, 0];
/// Tag, length, code.
const HEADER: usize = 10;
const LENGTH_AT: usize = 2;
const CODE_AT: usize = 6;

/// Why a PCR is not extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TpmFault {
    /// The TPM refuses.
    #[error("the TPM answers {0:#010x}")]
    Refused(u32),
    /// No answer of a TPM.
    #[error("the TPM's answer is cut short")]
    CutShort,
    /// The code of success in an answer of another form.
    #[error("the TPM's answer is none of a TPM 2.0")]
    Garbled,
}

/// Extends a PCR by the digest of `event`, of which the first [`EVENT_BYTES_MAX`] bytes count.
#[must_use]
pub fn pcr_event(pcr: u32, event: &[u8]) -> Vec<u8> {
    let event = &event[..event.len().min(EVENT_BYTES_MAX)];
    let mut body = pcr.to_be_bytes().to_vec();
    body.extend(be_u32(AUTHORISATION.len()));
    body.extend(AUTHORISATION);
    body.extend(&be_u32(event.len())[2..]);
    body.extend(event);
    let mut command = TAG_SESSIONS.to_be_bytes().to_vec();
    command.extend(be_u32(HEADER + body.len()));
    command.extend(PCR_EVENT.to_be_bytes());
    command.extend(body);
    command
}

/// Commands are shorter than 4 GiB.
fn be_u32(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Has the TPM done it?
///
/// # Errors
/// It has not, or the answer is none.
pub fn check(answer: &[u8]) -> Result<(), TpmFault> {
    let field =
        |at: usize| -> Option<u32> { Some(u32::from_be_bytes(answer.get(at..at + 4)?.try_into().ok()?)) };
    let (Some(length), Some(code)) = (field(LENGTH_AT), field(CODE_AT)) else {
        return Err(TpmFault::CutShort);
    };
    // A refusal has another tag, and nothing behind its code.
    let is_whole = answer.starts_with(&TAG_SESSIONS.to_be_bytes())
        && usize::try_from(length).is_ok_and(|length| length == answer.len());
    match code {
        0 if is_whole => Ok(()),
        0 => Err(TpmFault::Garbled),
        code => Err(TpmFault::Refused(code)),
    }
}

/// The events of a configuration's text.
pub fn config_events(text: &str) -> impl Iterator<Item = Vec<u8>> {
    let begin = format!("node-config {}", text.len()).into_bytes();
    std::iter::once(begin).chain(text.as_bytes().chunks(EVENT_BYTES_MAX).map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As TCG's specification has it, field by field.
    #[test]
    fn a_command_has_its_bytes() {
        let command = pcr_event(PCR_PHASES, ENTER_INITRD);
        let want: Vec<u8> = [
            &[0x80, 0x02][..],
            &[0, 0, 0, 41],
            &[0, 0, 1, 0x3c],
            &[0, 0, 0, 11],
            &[0, 0, 0, 9],
            &[0x40, 0, 0, 9, 0, 0, 0, 0, 0],
            &[0, 12],
            b"enter-initrd",
        ]
        .concat();
        assert_eq!(command, want);
        assert_eq!(pcr_event(15, &[7; 2000]).len(), 10 + 4 + 4 + 9 + 2 + EVENT_BYTES_MAX);
    }

    #[test]
    fn an_answer_says_whether_it_is_done() {
        let answer = |code: u32| [&[0x80, 0x02, 0, 0, 0, 10][..], &code.to_be_bytes()].concat();
        assert_eq!(check(&answer(0)), Ok(()));
        let mut long = [answer(0), vec![1; 100]].concat();
        assert_eq!(check(&long), Err(TpmFault::Garbled));
        long[5] = 110;
        assert_eq!(check(&long), Ok(()));
        // Zeros, and the tag of a TPM 1.2.
        assert_eq!(check(&[0; 10]), Err(TpmFault::Garbled));
        long[1] = 0xc4;
        assert_eq!(check(&long), Err(TpmFault::Garbled));
        let refused = check(&answer(0x907));
        assert_eq!(refused, Err(TpmFault::Refused(0x907)));
        assert_eq!(refused.map_err(|e| e.to_string()), Err("the TPM answers 0x00000907".to_owned()));
        for short in [&[][..], &[0x80, 1, 0, 0, 0, 10, 0, 0, 0]] {
            assert_eq!(check(short), Err(TpmFault::CutShort));
        }
    }

    #[test]
    fn a_configuration_is_measured_in_pieces() {
        let events: Vec<Vec<u8>> = config_events(&"x".repeat(2049)).collect();
        assert_eq!(events[0], b"node-config 2049");
        let lengths: Vec<usize> = events[1..].iter().map(Vec::len).collect();
        assert_eq!(lengths, [1024, 1024, 1]);
        assert_eq!(config_events("").collect::<Vec<_>>(), [b"node-config 0".to_vec()]);
    }

    proptest! {
        #[test]
        fn the_length_is_the_commands(pcr in any::<u32>(), event in proptest::collection::vec(any::<u8>(), 0..1500)) {
            let command = pcr_event(pcr, &event);
            let length = u32::from_be_bytes([command[2], command[3], command[4], command[5]]);
            prop_assert_eq!(usize::try_from(length).expect("small"), command.len());
            prop_assert!(command.len() <= ANSWER_BYTES_MAX);
        }

        #[test]
        fn no_answer_makes_it_panic(answer in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = check(&answer);
        }
    }
}
