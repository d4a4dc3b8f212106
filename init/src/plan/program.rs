//! The two programs of init: which subcommands orlop-init has, and what each program says when it is not called for what it does.
//!
//! In: the first argument. Out: the subcommand, or a line for the caller. The entry points are `exec::main` and `exec::initrd_main`;
//! each names only the functions of its own program, so that the linker leaves the others out.

/// How orlop-init is called.
pub const USAGE: &str = "usage: orlop-init bringup|configure|change|resolv|clock|guard|reset|ledger";

/// A subcommand of orlop-init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// The second stage: orlop-bringup.service.
    Bringup,
    /// The configuration once more: orlop-configure.service.
    Configure,
    /// A change of the node's own document: orlop-change.service.
    Change,
    /// Name servers of the network: orlop-resolv.service.
    Resolv,
    /// The clock at the agent's request: orlop-clock.service.
    Clock,
    /// The end of a trial: orlop-trial.service.
    Guard,
    /// The order of a factory reset: orlop-reset@.service.
    Reset,
    /// The boot ledger, for a person.
    Ledger,
}

impl Subcommand {
    /// All, in the order of [`USAGE`].
    pub const ALL: [Subcommand; 8] = [
        Subcommand::Bringup,
        Subcommand::Configure,
        Subcommand::Change,
        Subcommand::Resolv,
        Subcommand::Clock,
        Subcommand::Guard,
        Subcommand::Reset,
        Subcommand::Ledger,
    ];

    /// As a caller writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Subcommand::Bringup => "bringup",
            Subcommand::Configure => "configure",
            Subcommand::Change => "change",
            Subcommand::Resolv => "resolv",
            Subcommand::Clock => "clock",
            Subcommand::Guard => "guard",
            Subcommand::Reset => "reset",
            Subcommand::Ledger => "ledger",
        }
    }

    /// The subcommand of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Subcommand> {
        Subcommand::ALL.into_iter().find(|subcommand| subcommand.name() == name)
    }
}

/// What orlop-init says to a call without a subcommand of its own.
#[must_use]
pub fn refused_by_init(argument: Option<&str>) -> String {
    let why = argument.map_or(String::new(), |word| format!("there is no subcommand `{word}`; "));
    format!("orlop-init: {why}{USAGE}; PID 1 of the initrd is orlop-initrd")
}

/// What orlop-initrd says when it is not PID 1 of an initramfs.
#[must_use]
pub fn refused_by_initrd(argument: Option<&str>) -> String {
    let why = match argument {
        Some(word) if Subcommand::of(word).is_some() => format!("`{word}` is a subcommand of orlop-init; "),
        Some(word) => format!("there is no subcommand `{word}`; "),
        None => String::new(),
    };
    format!("orlop-initrd: {why}this program is PID 1 of an initramfs and does nothing else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subcommand_is_found_by_its_name_alone() {
        for subcommand in Subcommand::ALL {
            assert_eq!(Subcommand::of(subcommand.name()), Some(subcommand));
        }
        for other in ["", "Bringup", "bringup ", "initrd", "containerd-shim-runc-v2"] {
            assert_eq!(Subcommand::of(other), None, "{other}");
        }
    }

    #[test]
    fn the_usage_has_each_subcommand_once() {
        let names = Subcommand::ALL.map(Subcommand::name).join("|");
        assert_eq!(USAGE, format!("usage: orlop-init {names}"));
    }

    #[test]
    fn each_program_names_the_other_one() {
        let boots = "PID 1 of the initrd is orlop-initrd";
        assert_eq!(refused_by_init(None), format!("orlop-init: {USAGE}; {boots}"));
        assert_eq!(
            refused_by_init(Some("initrd")),
            format!("orlop-init: there is no subcommand `initrd`; {USAGE}; {boots}")
        );
        let purpose = "this program is PID 1 of an initramfs and does nothing else";
        assert_eq!(refused_by_initrd(None), format!("orlop-initrd: {purpose}"));
        assert_eq!(
            refused_by_initrd(Some("guard")),
            format!("orlop-initrd: `guard` is a subcommand of orlop-init; {purpose}")
        );
        assert_eq!(
            refused_by_initrd(Some("install")),
            format!("orlop-initrd: there is no subcommand `install`; {purpose}")
        );
    }
}
