//! Which resources' plugins may be asked for a registration, and when.
//!
//! In: names, the time, what registered. Out: whether a plugin is asked, and after which wait. Invariants: each name has its own rate
//! from its first attempt on, whether it succeeds or not, and takes one token of the rate of new names; the number of registered names
//! and of names that were tried is bounded. Upstream takes each attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_managers::devices::registration::RegistrationError;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

use super::limits::{self, NEW_REGISTRATION_WAIT_MAX, RESOURCES_MAX, TRIED_MAX};

/// A plugin may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    /// Its resource registered before, with this agent or with an earlier one.
    pub(super) is_known: bool,
    /// It is asked after this time.
    pub(super) wait: Duration,
}

/// A name that did not register yet.
struct TriedName {
    attempts: TokenBucket,
    /// The last attempt that was admitted.
    last: Mono,
}

/// The attempts of all resources.
pub(super) struct Registrations {
    /// Resources that registered since the start of the agent, with their next attempts. Each of them costs memory and a line of the
    /// Node, also without its plugin.
    registered: BTreeMap<String, TokenBucket>,
    /// Resources of the checkpoint that did not register since.
    earlier: BTreeMap<String, TokenBucket>,
    /// Other names.
    tried: BTreeMap<String, TriedName>,
    /// First attempts of other names.
    new_names: TokenBucket,
}

impl Registrations {
    /// No resource yet.
    pub(super) fn new() -> Registrations {
        Registrations {
            registered: BTreeMap::new(),
            earlier: BTreeMap::new(),
            tried: BTreeMap::new(),
            new_names: limits::new_registrations(),
        }
    }

    /// These resources registered with an earlier agent.
    pub(super) fn restore<'a>(&mut self, resources: impl IntoIterator<Item = &'a String>) {
        let known = resources.into_iter().take(RESOURCES_MAX);
        self.earlier.extend(known.map(|resource| (resource.clone(), limits::registrations())));
    }

    /// Admits an attempt to register this resource.
    ///
    /// # Errors
    /// There is no room for one more resource, or too many attempts came.
    pub(super) fn admit(&mut self, resource: &str, now: Mono) -> Result<Admission, RegistrationError> {
        if let Some(attempts) = self.registered.get_mut(resource) {
            return own(attempts, true, now);
        }
        self.check_room()?;
        if let Some(attempts) = self.earlier.get_mut(resource) {
            return own(attempts, true, now);
        }
        if let Some(tried) = self.tried.get_mut(resource) {
            let admission = own(&mut tried.attempts, false, now)?;
            tried.last = now;
            return Ok(admission);
        }
        let wait = self.new_names.reserve(now, NEW_REGISTRATION_WAIT_MAX);
        let wait = wait.map_err(RegistrationError::TooOften)?;
        if self.tried.len() >= TRIED_MAX {
            self.forget_one();
        }
        let mut attempts = limits::registrations();
        attempts.take(now);
        self.tried.insert(resource.to_owned(), TriedName { attempts, last: now });
        Ok(Admission { is_known: false, wait })
    }

    /// A plugin of this resource answered, and is registered.
    ///
    /// # Errors
    /// Others registered meanwhile, and there is no room for one more resource.
    pub(super) fn registered(&mut self, resource: &str) -> Result<(), RegistrationError> {
        if self.registered.contains_key(resource) {
            return Ok(());
        }
        self.check_room()?;
        let tried = self.tried.remove(resource).map(|tried| tried.attempts);
        let attempts = self.earlier.remove(resource).or(tried).unwrap_or_else(limits::registrations);
        self.registered.insert(resource.to_owned(), attempts);
        Ok(())
    }

    fn check_room(&self) -> Result<(), RegistrationError> {
        if self.registered.len() < RESOURCES_MAX {
            return Ok(());
        }
        let full = format!("the node has {RESOURCES_MAX} device plugins, and accepts no more");
        Err(RegistrationError::Dial(full))
    }

    /// Forgets the name whose last attempt is the longest ago. Its next one takes a token of new names again.
    fn forget_one(&mut self) {
        let oldest = self.tried.iter().min_by_key(|(_, tried)| tried.last).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest {
            self.tried.remove(&oldest);
        }
    }
}

/// Takes a token of a name's own rate.
fn own(attempts: &mut TokenBucket, is_known: bool, now: Mono) -> Result<Admission, RegistrationError> {
    let wait = attempts.reserve(now, Duration::ZERO).map_err(RegistrationError::TooOften)?;
    Ok(Admission { is_known, wait })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Result<Admission, RegistrationError> = Ok(Admission { is_known: false, wait: Duration::ZERO });
    const KNOWN: Result<Admission, RegistrationError> =
        Ok(Admission { is_known: true, wait: Duration::ZERO });

    fn at(second: u64) -> Mono {
        Mono(0).after(Duration::from_secs(second))
    }

    fn name(number: usize) -> String {
        format!("example.com/{number}")
    }

    fn too_often(seconds: u64) -> Result<Admission, RegistrationError> {
        Err(RegistrationError::TooOften(Duration::from_secs(seconds)))
    }

    /// How many of many attempts at this second are admitted.
    fn admitted(all: &mut Registrations, resource: impl Fn(usize) -> String, second: u64) -> usize {
        (0..200).filter(|number| all.admit(&resource(*number), at(second)).is_ok()).count()
    }

    /// A plugin that registers at this second.
    fn register(all: &mut Registrations, resource: &str, second: u64) {
        assert_eq!(all.admit(resource, at(second)), NEW, "{resource}");
        assert_eq!(all.registered(resource), Ok(()), "{resource}");
    }

    #[test]
    fn a_plugin_that_registers_in_a_loop_takes_no_others_registrations() {
        let mut all = Registrations::new();
        for resource in ["example.com/a", "example.com/b"] {
            register(&mut all, resource, 0);
        }
        assert_eq!(admitted(&mut all, |_| "example.com/a".to_owned(), 100), 4);
        // Those that wait for their turn are two.
        assert_eq!(admitted(&mut all, |number| format!("example.com/new-{number}"), 100), 128 + 2);
        assert_eq!(all.admit("example.com/a", at(100)), too_often(15));
        assert_eq!(all.admit("example.com/b", at(100)), KNOWN, "another resource's plugin is asked");
        assert_eq!(admitted(&mut all, |_| "example.com/a".to_owned(), 130), 2, "one each 15 s");
    }

    #[test]
    fn a_plugin_whose_registration_fails_takes_no_others_first_registration() {
        let mut all = Registrations::new();
        for second in 0..600 {
            admitted(&mut all, |_| "example.com/fails".to_owned(), second);
        }
        assert!((0..RESOURCES_MAX).all(|number| all.admit(&name(number), at(600)) == NEW));
    }

    #[test]
    fn the_attempts_before_the_first_success_count() {
        let mut all = Registrations::new();
        register(&mut all, "example.com/a", 0);
        assert_eq!(admitted(&mut all, |_| "example.com/a".to_owned(), 0), 3);
        assert_eq!(all.registered("example.com/a"), Ok(()));
        assert_eq!(all.admit("example.com/a", at(0)), too_often(15), "a success fills no bucket");
    }

    #[test]
    fn all_resources_of_a_node_register_at_once_and_later_ones_wait() {
        let mut all = Registrations::new();
        assert!((0..RESOURCES_MAX).all(|number| all.admit(&name(number), at(0)) == NEW));
        for (resource, seconds) in [("example.com/x", 5), ("example.com/y", 10)] {
            let admission = Admission { is_known: false, wait: Duration::from_secs(seconds) };
            assert_eq!(all.admit(resource, at(0)), Ok(admission));
        }
        assert_eq!(all.admit("example.com/z", at(0)), too_often(15));
    }

    #[test]
    fn resources_of_an_earlier_agent_are_not_new() {
        let mut all = Registrations::new();
        let earlier: Vec<String> = (0..20).map(name).collect();
        all.restore(&earlier);
        admitted(&mut all, |number| format!("example.com/new-{number}"), 0);
        for resource in &earlier {
            assert_eq!(all.admit(resource, at(0)), KNOWN);
            assert_eq!(all.registered(resource), Ok(()));
            assert_eq!(all.admit(resource, at(0)), KNOWN);
        }
        assert_eq!(admitted(&mut all, |_| name(0), 0), 2, "they have their own rate");
    }

    #[test]
    fn a_node_has_a_limited_number_of_resources() {
        let mut all = Registrations::new();
        all.restore(&["example.com/gone".to_owned()]);
        for number in 1..RESOURCES_MAX {
            register(&mut all, &name(number), 0);
        }
        // Both are asked while there is room for one.
        assert_eq!(all.admit("example.com/0", at(0)), NEW);
        assert_eq!(all.admit("example.com/late", at(5)), NEW);
        assert_eq!(all.registered("example.com/0"), Ok(()));
        assert!(matches!(all.registered("example.com/late"), Err(RegistrationError::Dial(_))));
        assert_eq!(all.admit("example.com/0", at(5)), KNOWN);
        for resource in ["example.com/more", "example.com/gone"] {
            assert!(matches!(all.admit(resource, at(100)), Err(RegistrationError::Dial(_))));
        }
    }

    #[test]
    fn names_that_never_register_are_forgotten() {
        let mut all = Registrations::new();
        for number in 0..1000 {
            let second = 5 * u64::try_from(number).unwrap();
            assert_eq!(all.admit(&name(number), at(second)), NEW);
            assert!(all.tried.len() <= TRIED_MAX);
        }
        assert!(!all.tried.contains_key(&name(0)) && all.tried.contains_key(&name(999)));
    }
}
