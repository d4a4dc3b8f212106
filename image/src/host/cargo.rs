//! Cargo, asked by a program that cargo itself has started.

use std::ffi::OsStr;
use std::process::Command;

/// Prefixes of the variables by which a program gets facts about its package from cargo.
const ABOUT_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// A cargo command without the variables of this program's package. Build scripts look at those (ring's does), so with
/// them each change between cargo from a shell and cargo from here would run the scripts again, and compile everything
/// that depends on them again.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| is_about_package(name)).for_each(|name| _ = command.env_remove(name));
    command
}

fn is_about_package(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| ABOUT_PACKAGE.iter().any(|begins| name.starts_with(begins)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_this_program_is_nobodys_business() {
        let told: Vec<_> =
            cargo().get_envs().map(|(name, value)| (name.to_owned(), value.is_some())).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some(), "{name}: cargo runs this test");
            assert!(told.contains(&(name.into(), false)), "{told:?}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "RUSTFLAGS", "PATH"] {
            assert!(!is_about_package(OsStr::new(name)), "{name}");
        }
    }
}
