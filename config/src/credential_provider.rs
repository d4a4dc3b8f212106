//! Credential-provider plugins: their names, images and settings, from `--image-credential-provider-config`
//! and from `registries.credentialProviders` of NodeConfig.
//!
//! In: the texts of its files in their order, or the entries of NodeConfig. Out: [`Provider`]s, or every
//! mistake with the path of its field. Upstream: pkg/credentialprovider/plugin/config.go, with its messages.

use std::collections::BTreeSet;
use std::fmt;

use crate::duration::Duration;
use crate::{formats, yaml};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Group of the configuration's versions.
pub(crate) const GROUP: &str = "kubelet.config.k8s.io/";
pub(crate) const KIND: &str = "CredentialProviderConfig";
/// Only this version of the configuration has tokens, and only this one of the plugins gets them.
pub(crate) const V1: &str = "v1";
const VERSIONS: [&str; 3] = [V1, "v1alpha1", "v1beta1"];
/// Group of the requests' versions.
const PLUGIN_GROUP: &str = "credentialprovider.kubelet.k8s.io/";

/// A plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name, which is that of its program.
    pub name: String,
    /// Images that it is asked about: registry, with `*` in parts of its name, and perhaps the beginning of a path.
    pub match_images: Vec<String>,
    /// How long an answer is kept that does not say so itself.
    pub default_cache: std::time::Duration,
    /// Version of the requests and answers, with its group.
    pub api_version: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Variables in addition to those of the agent.
    pub env: Vec<Variable>,
    /// The token that it gets, if it wants one.
    pub token: Option<Token>,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// `tokenAttributes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Whom the token is for.
    pub audience: String,
    /// The plugin is not asked for pods without a service account.
    pub require_account: bool,
    /// Annotations of the account that it gets, and without which it is not asked.
    pub required: Vec<String>,
    /// Annotations that it gets if they are there.
    pub optional: Vec<String>,
    /// Answers hold for one token only (`cacheType: Token`), not for the account.
    pub per_token: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    providers: Option<Vec<ProviderEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProviderEntry {
    #[serde(default)]
    name: String,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<Duration>,
    #[serde(default)]
    api_version: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<WrittenToken>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenToken {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--image-credential-provider-config: {}", .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// A field that is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Below the list of providers: `[0].name`; empty: the list itself.
    pub path: String,
    /// What is allowed, in upstream's words where it has some.
    pub reason: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "providers{}: {}", self.path, self.reason)
    }
}

/// All files together; `files` are (name, text) in their order. `tokens`: the gate of
/// [`Token`]s, and with it of `tokenAttributes`, is on.
///
/// # Errors
/// [`ConfigError`] with every mistake of the first file that cannot be read, else of all of them.
pub fn parse(files: &[(String, String)], tokens: bool) -> Result<Vec<Provider>, ConfigError> {
    let mut written = Vec::new();
    for (name, text) in files {
        written.extend(read(text).map_err(|why| ConfigError(vec![format!("{name}: {why}")]))?);
    }
    let mut wrong = mistakes(&written, tokens);
    if written.is_empty() {
        let reason = "Required value: at least 1 item in plugins is required".to_owned();
        wrong.push(Mistake { path: String::new(), reason });
    }
    if wrong.is_empty() {
        Ok(written.into_iter().map(ProviderEntry::provider).collect())
    } else {
        Err(ConfigError(wrong.iter().map(Mistake::to_string).collect()))
    }
}

/// Everything that is wrong with `entries`, which stand in no file; `tokens` as for [`parse`].
#[must_use]
pub fn check<'a>(entries: impl IntoIterator<Item = &'a Map<String, Value>>, tokens: bool) -> Vec<Mistake> {
    let mut written = Vec::new();
    let mut unreadable = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        match serde_json::from_value::<ProviderEntry>(Value::Object(entry.clone())) {
            Ok(entry) => written.push(entry),
            Err(_) => unreadable.extend(unreadable_fields(at, entry)),
        }
    }
    if unreadable.is_empty() { mistakes(&written, tokens) } else { unreadable }
}

/// Which fields cannot be read, without what they hold: it may be secret.
fn unreadable_fields(at: usize, entry: &Map<String, Value>) -> impl Iterator<Item = Mistake> {
    let alone = move |(key, value): (&String, &Value)| {
        let field = Value::Object([(key.clone(), value.clone())].into_iter().collect());
        let why = serde_json::from_value::<ProviderEntry>(field).err()?;
        let known = !why.to_string().starts_with("unknown field") || value.is_object();
        let reason = if known {
            "has not the shape that CredentialProviderConfig v1 gives it"
        } else {
            "is an unknown field"
        };
        Some(Mistake { path: format!("[{at}].{key}"), reason: reason.to_owned() })
    };
    entry.iter().filter_map(alone)
}

fn mistakes(written: &[ProviderEntry], tokens: bool) -> Vec<Mistake> {
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for (at, provider) in written.iter().enumerate() {
        let path = format!("[{at}]");
        if !names.insert(&provider.name) {
            let reason = format!("Duplicate value: {:?}", provider.name);
            wrong.push(Mistake { path: format!("{path}.name"), reason });
        }
        check_one(&path, provider, tokens, &mut wrong);
    }
    wrong
}

fn read(text: &str) -> Result<Vec<ProviderEntry>, String> {
    let document = yaml::parse(text).map_err(|e| format!("line {}: {}", e.line, e.reason))?;
    let file: File = serde_json::from_value(document.value).map_err(|e| e.to_string())?;
    let version = file.api_version.strip_prefix(GROUP).filter(|v| VERSIONS.contains(v));
    let (Some(version), KIND) = (version, file.kind.as_str()) else {
        return Err(format!("it is a {} of {}, not a {KIND} of {GROUP}{V1}", file.kind, file.api_version));
    };
    let providers = file.providers.unwrap_or_default();
    if version != V1 && providers.iter().any(|p| p.token_attributes.is_some()) {
        return Err(format!(
            "unknown field \"tokenAttributes\" in {GROUP}{version}; write it as {GROUP}{V1}"
        ));
    }
    Ok(providers)
}

fn check_one(path: &str, provider: &ProviderEntry, tokens: bool, wrong: &mut Vec<Mistake>) {
    let name = &provider.name;
    let mut rule = |ok: bool, field: &str, why: String| {
        if !ok {
            wrong.push(Mistake { path: format!("{path}.{field}"), reason: why });
        }
    };
    let invalid = |why: &str| format!("Invalid value: {name:?}: provider name cannot {why}");
    rule(!name.is_empty(), "name", "Required value".to_owned());
    rule(!name.contains('/'), "name", invalid("contain '/'"));
    rule(!name.contains(' '), "name", invalid("contain spaces"));
    rule(name != ".", "name", invalid("be '.'"));
    rule(name != "..", "name", invalid("be '..'"));
    let version = &provider.api_version;
    let known = version.strip_prefix(PLUGIN_GROUP).is_some_and(|v| VERSIONS.contains(&v));
    rule(!version.is_empty(), "apiVersion", "Required value".to_owned());
    rule(
        version.is_empty() || known,
        "apiVersion",
        format!(
            "Unsupported value: {version:?}: supported values: {}",
            VERSIONS.map(|v| format!("\"{PLUGIN_GROUP}{v}\"")).join(", ")
        ),
    );
    let images = provider.match_images.as_deref().unwrap_or_default();
    rule(
        !images.is_empty(),
        "matchImages",
        "Required value: at least 1 item in matchImages is required".to_owned(),
    );
    for image in images {
        if let Some(why) = wrong_place(image) {
            rule(false, "matchImages", format!("Invalid value: {image:?}: match image is invalid: {why}"));
        }
    }
    match provider.default_cache_duration {
        None => rule(false, "defaultCacheDuration", "Required value".to_owned()),
        Some(d) => rule(
            d >= Duration::ZERO,
            "defaultCacheDuration",
            format!("Invalid value: \"{d}\": must be greater than or equal to 0"),
        ),
    }
    if let Some(token) = &provider.token_attributes {
        check_token(&format!("{path}.tokenAttributes"), token, (tokens, version), wrong);
    }
}

fn check_token(path: &str, token: &WrittenToken, (tokens, version): (bool, &str), wrong: &mut Vec<Mistake>) {
    let keys = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let required = keys(&token.required_service_account_annotation_keys);
    let optional = keys(&token.optional_service_account_annotation_keys);
    let mut rule = |ok: bool, field: &str, why: String| {
        if !ok {
            wrong.push(Mistake { path: format!("{path}{field}"), reason: why });
        }
    };
    let gate = "Forbidden: tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled";
    rule(tokens, "", gate.to_owned());
    let own = format!("{PLUGIN_GROUP}{V1}");
    rule(version == own, "", format!("Forbidden: tokenAttributes is only supported for {own} API version"));
    let audience = &token.service_account_token_audience;
    rule(!audience.is_empty(), ".serviceAccountTokenAudience", "Required value".to_owned());
    let require = token.require_service_account;
    rule(require.is_some(), ".requireServiceAccount", "Required value".to_owned());
    rule(
        require != Some(false) || required.is_empty(),
        ".requiredServiceAccountAnnotationKeys",
        "Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
            .to_owned(),
    );
    for (field, list) in [
        (".requiredServiceAccountAnnotationKeys", &required),
        (".optionalServiceAccountAnnotationKeys", &optional),
    ] {
        let mut seen = BTreeSet::new();
        for key in list {
            let is_key = formats::is_qualified_name(&key.to_lowercase());
            rule(is_key, field, format!("Invalid value: {key:?}: must be the key of an annotation"));
            rule(seen.insert(key), field, format!("Duplicate value: {key:?}"));
        }
    }
    let both: Vec<&String> = required.iter().filter(|key| optional.contains(key)).collect();
    rule(
        both.is_empty(),
        "",
        format!("Invalid value: {both:?}: annotation keys cannot be both required and optional"),
    );
    let values = "\"ServiceAccount\", \"Token\"";
    let kind = token.cache_type.as_str();
    rule(!kind.is_empty(), ".cacheType", format!("Required value: one of {values}"));
    rule(
        ["", "ServiceAccount", "Token"].contains(&kind),
        ".cacheType",
        format!("Unsupported value: {kind:?}: supported values: {values}"),
    );
}

/// Why a text is not `registry[:port][/path]`.
fn wrong_place(text: &str) -> Option<&'static str> {
    let host = text.split('/').next().unwrap_or_default();
    if text.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    if host.chars().any(|c| " <>\"^`{}|\\@".contains(c)) {
        return Some("invalid character in host name");
    }
    if glob::Pattern::new(host).is_err() {
        return Some("its wildcards are wrong");
    }
    match host.rsplit_once(':') {
        Some((_, port)) if !port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(']') => {
            Some("invalid port after host")
        }
        _ => None,
    }
}

impl ProviderEntry {
    /// It was checked.
    fn provider(self) -> Provider {
        let token = self.token_attributes.map(|token| Token {
            audience: token.service_account_token_audience,
            require_account: token.require_service_account.unwrap_or(true),
            required: token.required_service_account_annotation_keys.unwrap_or_default(),
            optional: token.optional_service_account_annotation_keys.unwrap_or_default(),
            per_token: token.cache_type == "Token",
        });
        Provider {
            name: self.name,
            match_images: self.match_images.unwrap_or_default(),
            default_cache: self.default_cache_duration.unwrap_or(Duration::ZERO).to_std(),
            api_version: self.api_version,
            args: self.args.unwrap_or_default(),
            env: self.env.unwrap_or_default(),
            token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
    const ONE: &str = "providers:
- name: ecr
  matchImages: ['*.dkr.example.com', 'r.example:5000/team']
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get]
  env: [{name: A, value: b}]
  tokenAttributes:
    serviceAccountTokenAudience: registry
    cacheType: Token
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example.com/role]
";

    fn of(text: &str) -> Result<Vec<Provider>, ConfigError> {
        parse(&[("f.yaml".to_owned(), format!("{HEAD}{text}"))], true)
    }

    fn wrong(text: &str) -> String {
        of(text).unwrap_err().to_string()
    }

    #[test]
    fn what_a_plugin_may_be_told() {
        let all = of(ONE).unwrap();
        let [one] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((one.name.as_str(), one.default_cache.as_secs(), one.args.len()), ("ecr", 43200, 1));
        let token = one.token.as_ref().unwrap();
        assert!(token.per_token && token.require_account && token.required == ["example.com/role"]);
        let json = r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig","providers":[
            {"name":"b","matchImages":["x.io"],"defaultCacheDuration":"0s","apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1"}]}"#;
        let files = [("a".to_owned(), format!("{HEAD}{ONE}")), ("b".to_owned(), json.to_owned())];
        let names: Vec<String> = parse(&files, true).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["ecr", "b"]);
    }

    #[test]
    fn what_cannot_be_read_is_told_without_what_it_holds() {
        let entry = |value: Value| value.as_object().cloned().unwrap();
        let entries = [
            entry(
                json!({"name": "a", "env": "s3cret", "arg": ["s3cret"], "tokenAttributes": {"x": "s3cret"}}),
            ),
            entry(json!({"name": "a", "defaultCacheDuration": "s3cret"})),
        ];
        let mut told: Vec<String> = check(&entries, true).iter().map(Mistake::to_string).collect();
        told.sort();
        let shape = "has not the shape that CredentialProviderConfig v1 gives it";
        let mut want = vec![
            "providers[0].arg: is an unknown field".to_owned(),
            format!("providers[0].env: {shape}"),
            format!("providers[0].tokenAttributes: {shape}"),
            format!("providers[1].defaultCacheDuration: {shape}"),
        ];
        want.sort();
        assert_eq!(told, want);
        assert_eq!(check(&[], true), []);
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        let with = |from: &str, to: &str| wrong(&ONE.replacen(from, to, 1));
        for (from, to, words) in [
            (
                "name: ecr",
                "name: a/b",
                "providers[0].name: Invalid value: \"a/b\": provider name cannot contain '/'",
            ),
            ("name: ecr", "name: a b", "cannot contain spaces"),
            ("name: ecr", "name: ..", "cannot be '..'"),
            ("k8s.io/v1\n  args", "k8s.io/v7\n  args", "providers[0].apiVersion: Unsupported value"),
            (
                "k8s.io/v1\n  args",
                "k8s.io/v1beta1\n  args",
                "only supported for credentialprovider.kubelet.k8s.io/v1",
            ),
            ("12h", "-1s", "must be greater than or equal to 0"),
            ("12h", "soon", "f.yaml: must be a duration"),
            ("'*.dkr.example.com'", "'a:b/c'", "match image is invalid: invalid port after host"),
            ("  args: [get]", "  arg: [get]", "unknown field `arg`"),
            ("cacheType: Token", "cacheType: Pod", "tokenAttributes.cacheType: Unsupported value: \"Pod\""),
            ("    cacheType: Token\n", "", "tokenAttributes.cacheType: Required value"),
            (
                "requireServiceAccount: true",
                "requireServiceAccount: false",
                "requireServiceAccount cannot be false",
            ),
            (
                "    requireServiceAccount: true\n",
                "",
                "tokenAttributes.requireServiceAccount: Required value",
            ),
            (
                "Audience: registry",
                "Audience: ''",
                "tokenAttributes.serviceAccountTokenAudience: Required value",
            ),
            ("[example.com/role]", "[a, a]", "Duplicate value: \"a\""),
            ("[example.com/role]", "['a b']", "must be the key of an annotation"),
            (
                "[example.com/role]",
                "[a]\n    optionalServiceAccountAnnotationKeys: [a]",
                "cannot be both required and optional",
            ),
            ("defaultCacheDuration: 12h\n", "args: []\n", "duplicate"),
        ] {
            let said = with(from, to);
            assert!(said.contains(words), "{to}: {said}");
        }
        let bare = wrong("providers:\n- {name: a}\n- {name: a}\n");
        for words in [
            "providers[1].name: Duplicate value: \"a\"",
            "providers[0].matchImages: Required value",
            "providers[0].defaultCacheDuration: Required value",
            "providers[0].apiVersion: Required value",
        ] {
            assert!(bare.contains(words), "{words}: {bare}");
        }
        assert!(wrong("providers: []\n").contains("at least 1 item"));
        let gate = parse(&[("f".to_owned(), format!("{HEAD}{ONE}"))], false).unwrap_err().to_string();
        assert!(gate.contains("feature gate is disabled"), "{gate}");
        let other = parse(&[("f".to_owned(), "apiVersion: v1\nkind: Pod\n".to_owned())], true).unwrap_err();
        assert!(other.to_string().contains("f: it is a Pod of v1"), "{other}");
    }
}
