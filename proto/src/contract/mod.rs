//! A wire contract as a table of facts, and its comparison with another program's.
//!
//! In: file descriptors (ours, or one found in a binary by [`go_binary`]) or a table in text form.
//! Out: [`Contract`], and [`Difference`]s between two of them.
//! Invariant: what is compared is what matters on the wire or in code: numbers, names, types, cardinality,
//! methods and their streaming; comments, options and order are not.

pub mod go_binary;
mod table;
mod wire;

use std::collections::BTreeMap;
use std::fmt;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};

/// Why a contract cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// The bytes are no descriptor.
    #[error("decode file descriptor set: {0}")]
    Decode(#[from] prost::DecodeError),
    /// A line of the text form is not understood.
    #[error("contract table line {line}: {text:?}: expected {expected}")]
    Table {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
        /// What belongs there.
        expected: &'static str,
    },
}

/// One field: its name and its type as a `.proto` file would spell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Field name.
    pub name: String,
    /// For example `repeated Mount`, `map<string, string>`; names within the package are unqualified.
    pub kind: String,
}

/// One method of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// Request, with `stream ` in front if streamed.
    pub input: String,
    /// Response, with `stream ` in front if streamed.
    pub output: String,
}

/// The facts of one package. Nested types are named `Outer.Inner`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Message to number to field.
    pub messages: BTreeMap<String, BTreeMap<i32, Field>>,
    /// Enum to number to value name.
    pub enums: BTreeMap<String, BTreeMap<i32, String>>,
    /// Service to method name to method.
    pub services: BTreeMap<String, BTreeMap<String, Method>>,
}

/// How far two contracts are apart at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// Only we have it: the other side is older, and ignores it.
    OnlyOurs,
    /// Same number and same encoding, another name or spelling (`string` against `bytes`).
    Spelling,
    /// Only they have it: we would drop it.
    OnlyTheirs,
    /// Same number, another encoding: we would misread it.
    Conflict,
}

/// One place where two contracts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// How bad.
    pub gap: Gap,
    /// Message and number, enum and number, or service and method.
    pub place: String,
    /// Our side; empty if absent.
    pub ours: String,
    /// Their side; empty if absent.
    pub theirs: String,
}

impl Difference {
    /// True if messages would be misread or cut when the two sides talk.
    #[must_use]
    pub fn is_breaking(&self) -> bool {
        matches!(self.gap, Gap::OnlyTheirs | Gap::Conflict)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: ours {:?}, theirs {:?}", self.gap, self.place, self.ours, self.theirs)
    }
}

impl Contract {
    /// The CRI v1 that this crate was compiled from.
    ///
    /// # Errors
    /// [`ContractError::Decode`] if the build script wrote something else than a descriptor set.
    pub fn ours() -> Result<Contract, ContractError> {
        let set = FileDescriptorSet::decode(crate::cri::v1::FILE_DESCRIPTOR_SET)?;
        let mut contract = Contract::default();
        for file in &set.file {
            contract.add_file(file);
        }
        Ok(contract)
    }

    /// The facts of one file.
    #[must_use]
    pub fn of_file(file: &FileDescriptorProto) -> Contract {
        let mut contract = Contract::default();
        contract.add_file(file);
        contract
    }

    /// Every place where `self` (ours) and `theirs` differ, in order of place.
    #[must_use]
    pub fn compare(&self, theirs: &Contract) -> Vec<Difference> {
        let mut out = Vec::new();
        compare_maps(&self.messages, &theirs.messages, &mut out, |f: &Field, g: &Field| {
            if f == g {
                None
            } else if wire_form(&f.kind) == wire_form(&g.kind) {
                Some(Gap::Spelling)
            } else {
                Some(Gap::Conflict)
            }
        });
        let values = |a: &String, b: &String| (a != b).then_some(Gap::Conflict);
        compare_maps(&self.enums, &theirs.enums, &mut out, values);
        let methods = |a: &Method, b: &Method| (a != b).then_some(Gap::Conflict);
        compare_maps(&self.services, &theirs.services, &mut out, methods);
        out
    }

    fn add_file(&mut self, file: &FileDescriptorProto) {
        let package = format!(".{}.", file.package());
        for message in &file.message_type {
            self.add_message("", message, &package);
        }
        for enumeration in &file.enum_type {
            self.add_enum("", enumeration);
        }
        for service in &file.service {
            let methods = self.services.entry(service.name().to_owned()).or_default();
            for m in &service.method {
                let side = |streaming: bool, ty: &str| {
                    let name = ty.strip_prefix(&package).unwrap_or(ty);
                    if streaming { format!("stream {name}") } else { name.to_owned() }
                };
                let method = Method {
                    input: side(m.client_streaming(), m.input_type()),
                    output: side(m.server_streaming(), m.output_type()),
                };
                methods.insert(m.name().to_owned(), method);
            }
        }
    }

    fn add_message(&mut self, outer: &str, message: &DescriptorProto, package: &str) {
        let name = format!("{outer}{}", message.name());
        let fields =
            message.field.iter().map(|f| (f.number(), describe_field(f, message, package))).collect();
        self.messages.insert(name.clone(), fields);
        let inner = format!("{name}.");
        for nested in message.nested_type.iter().filter(|n| !is_map_entry(n)) {
            self.add_message(&inner, nested, package);
        }
        for nested in &message.enum_type {
            self.add_enum(&inner, nested);
        }
    }

    fn add_enum(&mut self, outer: &str, enumeration: &EnumDescriptorProto) {
        let name = format!("{outer}{}", enumeration.name());
        let values = enumeration.value.iter().map(|v| (v.number(), v.name().to_owned())).collect();
        self.enums.insert(name, values);
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
}

fn describe_field(field: &FieldDescriptorProto, message: &DescriptorProto, package: &str) -> Field {
    let type_name = field.type_name().strip_prefix(package).unwrap_or(field.type_name());
    let entry_name = type_name.rsplit('.').next().unwrap_or(type_name);
    let entry = message.nested_type.iter().find(|n| is_map_entry(n) && n.name() == entry_name);
    let kind = match entry {
        Some(entry) => {
            let part = |number| {
                entry
                    .field
                    .iter()
                    .find(|f| f.number() == number)
                    .map_or(String::new(), |f| base_type(f, package))
            };
            format!("map<{}, {}>", part(1), part(2))
        }
        None if field.label() == Label::Repeated => format!("repeated {}", base_type(field, package)),
        None => base_type(field, package),
    };
    Field { name: field.name().to_owned(), kind }
}

fn base_type(field: &FieldDescriptorProto, package: &str) -> String {
    match field.r#type() {
        Type::Message => format!("message {}", relative(field.type_name(), package)),
        Type::Enum => format!("enum {}", relative(field.type_name(), package)),
        Type::Group => "group".to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

fn relative<'a>(type_name: &'a str, package: &str) -> &'a str {
    type_name.strip_prefix(package).unwrap_or(type_name)
}

/// Types with the same encoding get the same form.
fn wire_form(kind: &str) -> String {
    if kind.starts_with("map<") {
        return kind.to_owned();
    }
    match kind.strip_prefix("repeated ") {
        Some(element) => format!("repeated {}", scalar_wire_form(element)),
        None => scalar_wire_form(kind).to_owned(),
    }
}

fn scalar_wire_form(kind: &str) -> &str {
    match kind {
        "string" | "bytes" => "bytes",
        other => other,
    }
}

/// An item of a two-level table, in words.
trait Fact {
    fn words(&self) -> String;
}

impl Fact for Field {
    fn words(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

impl Fact for String {
    fn words(&self) -> String {
        self.clone()
    }
}

impl Fact for Method {
    fn words(&self) -> String {
        format!("({}) returns ({})", self.input, self.output)
    }
}

type Table<K, V> = BTreeMap<String, BTreeMap<K, V>>;

fn compare_maps<K: Ord + fmt::Display, V: Fact>(
    ours: &Table<K, V>,
    theirs: &Table<K, V>,
    out: &mut Vec<Difference>,
    gap: impl Fn(&V, &V) -> Option<Gap>,
) {
    let none = BTreeMap::new();
    let mut push = |gap, place, ours: Option<&V>, theirs: Option<&V>| {
        let words = |v: Option<&V>| v.map_or(String::new(), Fact::words);
        out.push(Difference { gap, place, ours: words(ours), theirs: words(theirs) });
    };
    for (name, our_items) in ours {
        let Some(their_items) = theirs.get(name) else {
            push(Gap::OnlyOurs, name.clone(), None, None);
            continue;
        };
        for (key, mine) in our_items {
            match their_items.get(key) {
                None => push(Gap::OnlyOurs, format!("{name} {key}"), Some(mine), None),
                Some(yours) => {
                    if let Some(gap) = gap(mine, yours) {
                        push(gap, format!("{name} {key}"), Some(mine), Some(yours));
                    }
                }
            }
        }
    }
    for (name, their_items) in theirs {
        if !ours.contains_key(name) {
            push(Gap::OnlyTheirs, name.clone(), None, None);
        }
        let our_items = ours.get(name).unwrap_or(&none);
        for (key, yours) in their_items.iter().filter(|(key, _)| !our_items.contains_key(key)) {
            push(Gap::OnlyTheirs, format!("{name} {key}"), None, Some(yours));
        }
    }
}
