//! One call of the plugin: which name it was called by decides what is answered here and what is passed on.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Config, VERSIONS};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::{attachment, check, pass_on, portmap};

/// Names that it answers to.
const BRIDGE: &str = "bridge";
const HOST_LOCAL: &str = "host-local";
const PORTMAP: &str = "portmap";
/// Version of an error whose caller named none.
const LATEST: &str = "1.1.0";

/// What a call comes to.
enum CommandOutcome {
    Print(String),
    /// The program of the same name that stands behind this one answers.
    PassOn,
    /// The bridge is done, and the reference plugin `portmap` answers this.
    HostPorts(Value),
}

/// Reads the call from the process's surroundings and answers it.
#[must_use]
pub fn main(name: &str) -> ExitCode {
    if ![BRIDGE, HOST_LOCAL, PORTMAP].contains(&name) {
        let _ = writeln!(
            io::stderr(),
            "a CNI plugin: called as {BRIDGE}, {HOST_LOCAL} or {PORTMAP} by a container runtime"
        );
        return ExitCode::from(2);
    }
    let mut question = Vec::new();
    let read = io::stdin().read_to_end(&mut question);
    let version = version_of(&question);
    let outcome = read
        .map_err(|e| Failure::Decode(e.to_string()))
        .and_then(|_| Environment::read(|variable| std::env::var(variable).ok()))
        .and_then(|environment| answered(name, &environment, &question));
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            let _ = print(&failure.object(&version).to_string());
            ExitCode::FAILURE
        }
    }
}

fn answered(name: &str, environment: &Environment, question: &[u8]) -> Result<ExitCode, Failure> {
    // In the order of a list of plugins, which DEL goes backwards.
    if (name, environment.command.as_str()) == (BRIDGE, "DEL")
        && let Some(ports) = portmap::question(question, None)
        && !passed_on(PORTMAP, environment, ports.to_string().as_bytes())?
    {
        return Ok(ExitCode::FAILURE);
    }
    let code = |succeeded: bool| if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = match answer(name, environment, question)? {
        CommandOutcome::Print(text) => text,
        CommandOutcome::PassOn => return passed_on(name, environment, question).map(code),
        CommandOutcome::HostPorts(ports) => {
            let ports = ports.to_string();
            let succeeded = passed_on(PORTMAP, environment, ports.as_bytes());
            if environment.command == "ADD" && !matches!(succeeded, Ok(true)) {
                take_back(environment, question, ports.as_bytes());
            }
            return succeeded.map(code);
        }
    };
    print(&text).map_err(|source| Failure::File {
        action: "write",
        path: "standard output".into(),
        source,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn answer(name: &str, environment: &Environment, question: &[u8]) -> Result<CommandOutcome, Failure> {
    let command = environment.command.as_str();
    if name == PORTMAP {
        return Ok(portmap::answer(command, question).map_or(CommandOutcome::PassOn, CommandOutcome::Print));
    }
    if command == "VERSION" {
        let version = version_of(question);
        let spoken = json!({"cniVersion": version, "supportedVersions": VERSIONS});
        return Ok(CommandOutcome::Print(spoken.to_string()));
    }
    let config = Config::read(question)?;
    if name == BRIDGE && config.unsupported().is_some() {
        return Ok(CommandOutcome::PassOn);
    }
    let since = match command {
        "CHECK" => "0.4.0",
        "GC" | "STATUS" => "1.1.0",
        _ => "",
    };
    // Versions are in order, and so are their texts.
    if config.cni_version.as_str() < since {
        return Err(Failure::Version(config.cni_version));
    }
    let nothing = |()| String::new();
    let printed = |value: Value| value.to_string();
    let text = match (name, command) {
        (BRIDGE, "ADD") => {
            let result = attachment::add(&config, environment)?;
            if let Some(ports) = portmap::question(question, Some(&result)) {
                return Ok(CommandOutcome::HostPorts(ports));
            }
            Ok(printed(result))
        }
        (_, "ADD") => attachment::add_addresses(&config, environment).map(printed),
        (BRIDGE, "DEL") => attachment::delete(&config, environment).map(nothing),
        (_, "DEL") => attachment::release(&config, environment).map(nothing),
        (BRIDGE, "CHECK") => {
            check::check(&config, environment)?;
            if let Some(ports) = portmap::question(question, None) {
                return Ok(CommandOutcome::HostPorts(ports));
            }
            Ok(String::new())
        }
        (_, "CHECK") => check::addresses(&config, environment).map(nothing),
        (_, "GC") if config.has_addresses() => attachment::collect(&config).map(nothing),
        (_, "GC") => Ok(String::new()),
        (_, "STATUS") => attachment::status(&config).map(nothing),
        _ => Err(Failure::Environment { variable: "CNI_COMMAND", why: format!("{command:?} is unknown") }),
    };
    text.map(CommandOutcome::Print)
}

/// Has the other program of this name answer; true if it succeeded.
fn passed_on(name: &str, environment: &Environment, question: &[u8]) -> Result<bool, Failure> {
    let program = pass_on::other(name, &environment.path, Path::new("/proc/self/exe"));
    let Some(program) = program else {
        let field = match name {
            PORTMAP => Some("runtimeConfig.portMappings".to_owned()),
            _ => Config::read(question).ok().and_then(|config| config.unsupported()),
        };
        return Err(Failure::Unsupported { field: field.unwrap_or_default(), plugin: name.to_owned() });
    };
    pass_on::run(&program, question).map_err(|source| Failure::File { action: "run", path: program, source })
}

/// Removes the attachment of a container that did not get its host ports, in the order of DEL. What was in the way is the news,
/// not what follows from it.
fn take_back(environment: &Environment, question: &[u8], ports: &[u8]) {
    if let Some(program) = pass_on::other(PORTMAP, &environment.path, Path::new("/proc/self/exe")) {
        let _ = pass_on::take_back(&program, ports);
    }
    let _ = Config::read(question).and_then(|config| attachment::delete(&config, environment));
}

/// The version that the caller speaks; the latest one if the configuration names none.
fn version_of(question: &[u8]) -> String {
    let value: Value = serde_json::from_slice(question).unwrap_or_default();
    value.get("cniVersion").and_then(Value::as_str).unwrap_or(LATEST).to_owned()
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}
