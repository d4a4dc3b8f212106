//! Signals: the API writes `SIGRTMIN+1` where CRI's enum has `SIGRTMINPLUS1`.

use orlop_proto::cri::v1::Signal;

/// The enum's number; a name that it does not have leaves the choice to the runtime, as upstream does.
pub(super) fn number(name: Option<&str>) -> i32 {
    let known = name.and_then(|name| Signal::from_str_name(&name.replace('+', "PLUS").replace('-', "MINUS")));
    known.unwrap_or(Signal::RuntimeDefault).into()
}

/// The name in the API; `None` if the runtime does not say.
pub(super) fn name(number: i32) -> Option<String> {
    let signal = Signal::try_from(number).ok().filter(|signal| *signal != Signal::RuntimeDefault)?;
    Some(signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use agent_types::signal;

    use super::*;

    #[test]
    fn every_signal_of_the_api_has_a_number_and_comes_back() {
        let numbers: BTreeSet<i32> = signal::NAMES.iter().map(|name| number(Some(name))).collect();
        assert_eq!((numbers.len(), numbers.contains(&0)), (signal::NAMES.len(), false));
        for text in signal::NAMES {
            assert_eq!(name(number(Some(text))).as_deref(), Some(*text));
        }
        assert_eq!(number(Some("SIGRTMIN+15")), i32::from(Signal::Sigrtminplus15));
        assert_eq!(number(Some("SIGRTMAX-14")), i32::from(Signal::Sigrtmaxminus14));
    }

    #[test]
    fn what_nobody_names_is_the_runtimes_choice() {
        for odd in [None, Some(""), Some("TERM"), Some("SIGWHAT"), Some("SIGRTMIN+16")] {
            assert_eq!(number(odd), 0, "{odd:?}");
        }
        for odd in [0, -1, 66, i32::MAX] {
            assert_eq!(name(odd), None, "{odd}");
        }
    }
}
