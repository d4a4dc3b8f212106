//! The page of command lines: those of clap from their derives, the others from their texts of usage.

use super::clap_items::{ClapField, ClapItem, items};
use super::{code, head, opening, row, tokens_of};
use crate::Finding;
use crate::text::is_test_file;
use crate::tokens::{Token, product, tokens};
use crate::tree::SourceFile;

const AGENT: &str = "agent/daemon/src/process/cli.rs";
const INIT: &str = "init/src/plan/program.rs";
const UPDATE: &str = "agent/daemon/src/process/update.rs";
const CTL: &str = "agent/ctl/src/cli.rs";
/// Programs whose command line is clap's: name, folder of the sources, purpose.
const CLAP: [(&str, &str, &str); 2] = [
    (
        "orlopctl",
        "agent/ctl/src/",
        "Asks a node what it knows about itself, and changes it: [node-api.md](node-api.md).",
    ),
    (
        "orlop-image",
        "image/src/",
        "Builds, boots, exports and publishes the image: [image.md](../internals/image.md), [install.md](../howto/install.md), \
         [update.md](update.md). `cargo boot` is `orlop-image boot`.",
    ),
];
/// The item at the top of such a command line.
const TOP: &str = "Cli";
const ABOUT: &str = "The programs of the node and of its builder, and what they take. On a node systemd calls them; an administrator \
calls `orlopctl`, and `orlop-image` on the machine that builds.";

pub(super) fn page(files: &[SourceFile]) -> Result<String, Finding> {
    let mut page = opening("Command lines", "the programs' own definitions", ABOUT);
    for (name, folder, about) in CLAP {
        page.push_str(&format!("\n## {name}\n\n{about}\n"));
        let items = items_of(files, folder);
        let top = named(&items, TOP).ok_or_else(|| Finding::new(folder, 0, "has no command line of clap"))?;
        commands(&mut page, &items, name, &top.fields);
        if folder == "agent/ctl/src/" {
            page.push_str(&format!("\n```\n{}\n```\n", constant(files, CTL, "EXAMPLES")?));
        }
    }
    page.push_str("\n## orlop-agent\n\nThe node agent. [agent/flags.md](../internals/agent/flags.md) has every flag, and its key of NodeConfig.\n");
    page.push_str(&format!("\n```\n{}\n```\n", constant(files, AGENT, "HELP")?.trim_end()));
    page.push_str("\n## orlop-init\n\nThe boot, and services of the node: [boot.md](boot.md).\n");
    page.push_str(&format!("\n```\n{}\n```\n", usage(files, INIT)?));
    page.push_str("\n## orlop-update\n\nWrites releases into the slot that does not run: [update.md](update.md#on-a-node). Without an \
                   argument it serves.\n");
    page.push_str(&format!("\n```\n{}\n```\n", usage(files, UPDATE)?));
    page.push_str("\n## Programs without arguments\n\n");
    page.push_str(&head(["program", "called by", "function"]));
    for (program, caller, function) in [
        (
            "orlop-node-api",
            "systemd, when a client connects",
            "the management API ([node-api.md](node-api.md))",
        ),
        (
            "orlop-serial",
            "udev, on a machine with the port",
            "the virtio-serial port of the management API ([node-api.md](node-api.md#virtio-serial))",
        ),
        (
            "orlop-provision",
            "systemd, at the first boot",
            "user data of a platform ([platforms.md](platforms.md))",
        ),
        ("orlop-cni", "containerd, as `bridge` and `host-local`", "the node's own pod network"),
        (
            "containerd-shim-runc-v2",
            "containerd",
            "`orlop-init` in front of the shim ([image.md](../internals/image.md))",
        ),
    ] {
        page.push_str(&row([&code(program), caller, function]));
    }
    Ok(page)
}

/// The items of all files of a folder.
fn items_of(files: &[SourceFile], folder: &str) -> Vec<ClapItem> {
    let of_folder = files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with(folder) && !is_test_file(&file.path));
    of_folder.flat_map(|file| items(&product(&tokens(file.text.as_deref().unwrap_or_default())))).collect()
}

fn named<'a>(items: &'a [ClapItem], name: &str) -> Option<&'a ClapItem> {
    items.iter().find(|item| item.name == name)
}

/// The value of the constant text `name`.
fn constant(files: &[SourceFile], path: &str, name: &str) -> Result<String, Finding> {
    let all = tokens_of(files, path)?;
    let at = all.windows(2).position(|pair| pair[0].is_word("const") && pair[1].is_word(name));
    let text = at.and_then(|at| all[at..].iter().find_map(Token::text));
    text.map(str::to_owned).ok_or_else(|| Finding::new(path, 0, format!("has no constant text `{name}`")))
}

/// The text that begins with `usage: `, without that word.
fn usage(files: &[SourceFile], path: &str) -> Result<String, Finding> {
    let all = tokens_of(files, path)?;
    let text = all.iter().filter_map(Token::text).find_map(|text| text.strip_prefix("usage: "));
    text.map(str::to_owned).ok_or_else(|| Finding::new(path, 0, "has no text of usage"))
}

/// Options of a command, then its subcommands with theirs.
fn commands(page: &mut String, items: &[ClapItem], title: &str, fields: &[ClapField]) {
    let mut rows = String::new();
    options(&mut rows, items, fields);
    if !rows.is_empty() {
        page.push_str(&format!("\n{}{rows}", head(["option", "default", "meaning"])));
    }
    let subcommands = fields.iter().filter(|field| field.setting("subcommand").is_some());
    for verbs in subcommands.filter_map(|field| named(items, field.type_name())) {
        for verb in verbs.fields.iter().filter(|verb| verb.setting("hide").is_none()) {
            let name = verb.setting_text("name").map_or_else(|| kebab(&verb.name), str::to_owned);
            let title = format!("{title} {name}");
            page.push_str(&format!("\n### {title}\n\n{}.\n", verb.help));
            let held = named(items, verb.type_name());
            match held {
                // A command of commands: the enum stands in the variant itself.
                Some(item) if verb.setting("subcommand").is_some() => {
                    for verb in &item.fields {
                        let title = format!("{title} {}", kebab(&verb.name));
                        page.push_str(&format!("\n### {title}\n\n{}.\n", verb.help));
                        let fields = named(items, verb.type_name())
                            .map_or(&[] as &[ClapField], |item| item.fields.as_slice());
                        commands(page, items, &title, fields);
                    }
                }
                Some(item) => commands(page, items, &title, &item.fields),
                None => commands(page, items, &title, &verb.inner),
            }
        }
    }
}

fn options(rows: &mut String, items: &[ClapItem], fields: &[ClapField]) {
    let is_own = |field: &&ClapField| ["subcommand", "skip"].iter().all(|name| field.setting(name).is_none());
    for field in fields.iter().filter(is_own) {
        if field.setting("flatten").is_some() {
            if let Some(item) = named(items, field.type_name()) {
                options(rows, items, &item.fields);
            }
            continue;
        }
        let mut meaning = field.help.clone();
        if field.setting("value_enum").is_some()
            && let Some(item) = named(items, field.type_name())
        {
            let words = item.fields.iter().map(|value| {
                let name = value.setting_text("name").map_or_else(|| kebab(&value.name), str::to_owned);
                code(&name)
            });
            meaning.push_str(&format!(": {}", words.collect::<Vec<_>>().join(", ")));
        }
        rows.push_str(&row([&code(&label(field)), &default(field), &meaning]));
    }
}

/// `-o, --output OUTPUT`, or the name of a positional value.
fn label(field: &ClapField) -> String {
    let upper = field.name.to_uppercase();
    let value = field.setting_text("value_name").unwrap_or(&upper);
    if field.setting("long").is_none() && field.setting("short").is_none() {
        return match (field.is_of("Vec"), field.is_of("Option")) {
            (true, _) => format!("[{value}...]"),
            (_, true) => format!("[{value}]"),
            _ => value.to_owned(),
        };
    }
    let mut names = Vec::new();
    if field.setting("short").is_some() {
        names.push(format!("-{}", field.name.chars().next().unwrap_or('?')));
    }
    if let Some(own) = field.setting("long") {
        let name = own.first().and_then(Token::text).map_or_else(|| kebab(&field.name), str::to_owned);
        names.push(format!("--{name}"));
    }
    let names = names.join(", ");
    if field.is_of("bool") { names } else { format!("{names} {value}") }
}

fn default(field: &ClapField) -> String {
    if let Some(text) = field.setting_text("default_value") {
        return code(text);
    }
    if let Some(value) = field.setting("default_value_t") {
        let last = value.iter().rev().find_map(Token::word).unwrap_or("");
        // A constant is no word of the command line: the help says what it stands for.
        let is_constant = last.chars().any(char::is_uppercase) && !last.chars().any(char::is_lowercase);
        return if is_constant { code("") } else { code(&kebab(last)) };
    }
    let optional = ["Option", "Vec", "bool"].iter().any(|word| field.is_of(word));
    if optional && field.setting("required").is_none() { code("") } else { "required".to_owned() }
}

/// `SignFile` and `sign_file` as clap writes them: `sign-file`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    // A word in capitals is one word.
    let is_constant = name.chars().all(|c| !c.is_lowercase());
    for c in name.chars() {
        if c == '_' {
            kebab.push('-');
        } else {
            if c.is_uppercase() && !is_constant && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(c.to_lowercase());
        }
    }
    kebab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_subcommands_are_shown() {
        let text = "#[derive(Parser)] struct Cli { /// Longest wait\n #[arg(short, long, default_value_t = 10)] time_out: u64, #[arg(skip)] own: bool, #[command(subcommand)] verb: Verb }\n\
                    #[derive(Subcommand)] enum Verb { /// Shows.\n GetAll(GetArgs), /// Keys\n #[command(subcommand)] Key(KeyVerb), #[command(hide = true)] Own }\n\
                    #[derive(Subcommand)] enum KeyVerb { /// Makes\n New(KeyArgs) }\n\
                    #[derive(Args)] struct KeyArgs { /// File\n file: PathBuf, #[command(flatten)] how: How }\n\
                    #[derive(Args)] struct How { /// Form\n #[arg(long, value_enum, default_value_t = Form::Table)] form: Form, \
                    /// For\n #[arg(long, default_value_t = Arch::HOST)] arch: Arch }\n\
                    #[derive(ValueEnum)] enum Form { Table, #[value(name = \"4096\")] Big }\n\
                    #[derive(Args)] struct GetArgs { /// Names\n names: Vec<String>, /// Quiet\n #[arg(long)] quiet: bool }";
        let items = items(&tokens(text));
        let mut page = String::new();
        commands(&mut page, &items, "x", &named(&items, TOP).unwrap().fields);
        for line in [
            "| `-t, --time-out TIME_OUT` | `10` | Longest wait |",
            "### x get-all",
            "Shows.",
            "| `[NAMES...]` | – | Names |",
            "| `--quiet` | – | Quiet |",
            "### x key new",
            "| `FILE` | required | File |",
            "| `--form FORM` | `table` | Form: `table`, `4096` |",
            "| `--arch ARCH` | – | For |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
        assert!(!page.contains("own") && !page.contains("OWN"), "{page}");
    }

    #[test]
    fn names_are_clap_s() {
        for (name, expected) in
            [("SignFile", "sign-file"), ("vsock_socket", "vsock-socket"), ("HOST", "host"), ("10", "10")]
        {
            assert_eq!(kebab(name), expected);
        }
    }

    #[test]
    fn texts_of_usage_are_found_or_missed() {
        let files = [SourceFile::of(
            "a.rs",
            "pub const HELP: &str = \"\\\nUsage: a\n\"; fn f() { g(\"usage: a b|c\") }",
        )];
        assert_eq!(constant(&files, "a.rs", "HELP").unwrap(), "Usage: a\n");
        assert_eq!(usage(&files, "a.rs").unwrap(), "a b|c");
        assert!(constant(&files, "a.rs", "OTHER").is_err() && usage(&files, "b.rs").is_err());
    }
}
