//! Options of the static CPU policy (`cpuManagerPolicyOptions`) and of the topology policies (`topologyManagerPolicyOptions`).
//!
//! In: names and values, the gates that open the alpha and beta ones. Out: [`CpuOptions`], [`TopologyOptions`], or the first mistake in
//! upstream's words. Upstream: pkg/kubelet/cm/cpumanager/policy_options.go, topologymanager/policy_options.go.

use std::collections::BTreeMap;
use std::num::IntErrorKind;

use super::FeatureGates;
use super::flags::read_bool;

/// Options that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own that an operator sets")]
pub struct CpuOptions {
    /// `full-pcpus-only`: whole cores, or the pod is refused.
    pub full_cores_only: bool,
    /// `strict-cpu-reservation`: containers without exclusive processors do not run on reserved ones.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`.
    pub align_by_uncore: bool,
    /// `distribute-cpus-across-numa` (beta).
    pub distribute_across_nodes: bool,
    /// `align-by-socket` (alpha).
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores` (alpha).
    pub distribute_across_cores: bool,
}

/// The gates `CPUManagerPolicyAlphaOptions` and `CPUManagerPolicyBetaOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionGates {
    /// Alpha options may be named.
    pub alpha: bool,
    /// Beta options may be named.
    pub beta: bool,
}

impl OptionGates {
    /// As the node has them.
    #[must_use]
    pub fn of(gates: &FeatureGates) -> OptionGates {
        OptionGates {
            alpha: gates.cpu_manager_policy_alpha_options,
            beta: gates.cpu_manager_policy_beta_options,
        }
    }
}

impl Default for OptionGates {
    fn default() -> Self {
        OptionGates { alpha: false, beta: true }
    }
}

/// A mistake in the options; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    /// The option's gate is off.
    #[error("CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided")]
    Closed {
        /// Alpha or Beta.
        level: &'static str,
        /// Option.
        name: String,
    },
    /// The value is no truth value.
    #[error("bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    BadValue {
        /// Option.
        name: String,
        /// Value.
        value: String,
    },
    /// Two options contradict each other.
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Exclusive(&'static str, &'static str),
}

const FULL: &str = "full-pcpus-only";
const STRICT: &str = "strict-cpu-reservation";
const UNCORE: &str = "prefer-align-cpus-by-uncorecache";
const NUMA: &str = "distribute-cpus-across-numa";
const SOCKET: &str = "align-by-socket";
const CORES: &str = "distribute-cpus-across-cores";

impl CpuOptions {
    /// Reads names and values.
    ///
    /// # Errors
    /// The first mistake, in the order of names.
    pub fn parse(given: &BTreeMap<String, String>, gates: OptionGates) -> Result<CpuOptions, OptionError> {
        let mut options = CpuOptions::default();
        for (name, value) in given {
            let (field, level): (&mut bool, Option<(&str, bool)>) = match name.as_str() {
                FULL => (&mut options.full_cores_only, None),
                STRICT => (&mut options.strict_reservation, None),
                UNCORE => (&mut options.align_by_uncore, None),
                NUMA => (&mut options.distribute_across_nodes, Some(("Beta", gates.beta))),
                SOCKET => (&mut options.align_by_socket, Some(("Alpha", gates.alpha))),
                CORES => (&mut options.distribute_across_cores, Some(("Alpha", gates.alpha))),
                _ => return Err(OptionError::Unknown(name.clone())),
            };
            if let Some((level, false)) = level {
                return Err(OptionError::Closed { level, name: name.clone() });
            }
            let bad = || OptionError::BadValue { name: name.clone(), value: value.clone() };
            *field = read_bool(value).ok_or_else(bad)?;
        }
        options.exclusive().map_or(Ok(options), Err)
    }

    fn exclusive(self) -> Option<OptionError> {
        [
            (self.full_cores_only, FULL, self.distribute_across_cores, CORES),
            (self.distribute_across_nodes, NUMA, self.distribute_across_cores, CORES),
            (self.align_by_uncore, UNCORE, self.distribute_across_cores, CORES),
            (self.align_by_uncore, UNCORE, self.distribute_across_nodes, NUMA),
        ]
        .into_iter()
        .find_map(|(a, first, b, second)| (a && b).then_some(OptionError::Exclusive(first, second)))
    }
}

/// Options of the topology policies other than none. All of them are stable: no gate opens or closes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `prefer-closest-numa-nodes`: among placements of the same size the one with the smallest distances.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`: the agent does not start on a machine with more.
    pub nodes_max: u64,
}

/// The default and the smallest value of `max-allowable-numa-nodes`.
const NODES_MAX: u64 = 8;

impl Default for TopologyOptions {
    fn default() -> TopologyOptions {
        TopologyOptions { prefer_closest: false, nodes_max: NODES_MAX }
    }
}

/// A mistake in the options; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyOptionError {
    /// No such option.
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Unknown(String),
    /// The value is no truth value.
    #[error(
        "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing {0:?}: invalid syntax"
    )]
    BadValue(String),
    /// The value is no number.
    #[error(
        "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing {value:?}: {fault}"
    )]
    NoInteger {
        /// Value.
        value: String,
        /// The fault, in Go's words.
        fault: &'static str,
    },
    /// The number is too small.
    #[error("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8")]
    TooFew,
}

const CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST: &str = "max-allowable-numa-nodes";

impl TopologyOptions {
    /// Reads names and values.
    ///
    /// # Errors
    /// The first mistake, in the order of names.
    pub fn parse(given: &BTreeMap<String, String>) -> Result<TopologyOptions, TopologyOptionError> {
        let mut options = TopologyOptions::default();
        for (name, value) in given {
            match name.as_str() {
                CLOSEST => {
                    let bad = || TopologyOptionError::BadValue(value.clone());
                    options.prefer_closest = read_bool(value).ok_or_else(bad)?;
                }
                MOST => {
                    let number: i64 = value.parse().map_err(|error: std::num::ParseIntError| {
                        let fault = match error.kind() {
                            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                            _ => "invalid syntax",
                        };
                        TopologyOptionError::NoInteger { value: value.clone(), fault }
                    })?;
                    let number = u64::try_from(number).ok().filter(|number| *number >= NODES_MAX);
                    options.nodes_max = number.ok_or(TopologyOptionError::TooFew)?;
                }
                _ => return Err(TopologyOptionError::Unknown(name.clone())),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_topology_policies() {
        let parse = |name: &str, value: &str| {
            let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            TopologyOptions::parse(&given).map_err(|error| error.to_string())
        };
        let closest = TopologyOptions { prefer_closest: true, nodes_max: 8 };
        assert_eq!(TopologyOptions::parse(&BTreeMap::new()), Ok(TopologyOptions::default()));
        assert_eq!(parse(CLOSEST, "1"), Ok(closest));
        assert_eq!(parse(MOST, "+16"), Ok(TopologyOptions { prefer_closest: false, nodes_max: 16 }));
        for (name, value, message) in [
            ("x", "1", "unknown Topology Manager Policy option: \"x\""),
            (
                CLOSEST,
                "yes",
                "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                MOST,
                "many",
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"many\": \
                 invalid syntax",
            ),
            (
                MOST,
                "99999999999999999999",
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \
                 \"99999999999999999999\": value out of range",
            ),
            (MOST, "7", "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"),
            (MOST, "-8", "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"),
        ] {
            assert_eq!(parse(name, value), Err(message.to_owned()));
        }
    }

    fn parse(given: &[(&str, &str)], gates: OptionGates) -> Result<CpuOptions, String> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        CpuOptions::parse(&given, gates).map_err(|error| error.to_string())
    }

    #[test]
    fn options_and_mistakes() {
        let (closed, open) = (OptionGates::default(), OptionGates { alpha: true, beta: true });
        let full = CpuOptions { full_cores_only: true, ..CpuOptions::default() };
        assert_eq!(parse(&[(FULL, "T"), (STRICT, "0")], closed), Ok(full));
        for (given, gates, message) in [
            (vec![("x", "1")], closed, "unknown CPU Manager Policy option: \"x\""),
            (
                vec![(SOCKET, "false")],
                closed,
                "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
            ),
            (
                vec![(NUMA, "true")],
                OptionGates { alpha: false, beta: false },
                "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided",
            ),
            (
                vec![(FULL, "yes")],
                closed,
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                vec![(FULL, "true"), (CORES, "true")],
                open,
                "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
            ),
            (
                vec![(UNCORE, "true"), (NUMA, "true")],
                open,
                "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used \
                 at the same time",
            ),
        ] {
            assert_eq!(parse(&given, gates), Err(message.to_owned()));
        }
        assert!(parse(&[(FULL, "true"), (CORES, "false")], open).is_ok());
    }
}
