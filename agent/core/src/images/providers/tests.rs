//! Requests of plugins, their answers, and the scope and lifetime of an answer.

use super::*;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

fn provider(per_token: Option<bool>) -> Provider {
    Provider {
        name: "p".to_owned(),
        match_images: vec!["*.example".to_owned(), "r.io:5000/team".to_owned()],
        default_cache: Duration::from_secs(60),
        api_version: V1.to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        token: per_token.map(|per_token| Token {
            audience: "registry".to_owned(),
            require_account: true,
            required: vec!["r".to_owned()],
            optional: vec!["o".to_owned()],
            per_token,
        }),
    }
}

fn account(name: &str) -> Account {
    Account {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        annotations: [("r".to_owned(), "1".to_owned())].into(),
    }
}

fn printed(body: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"{V1}","kind":"CredentialProviderResponse",{body}}}"#).into_bytes()
}

#[test]
fn whom_a_plugin_is_asked_about() {
    let table = [
        ("a.example/x", true),
        ("a.b.example/x", false),
        ("r.io:5000/team/x", true),
        ("r.io:5000/other/x", false),
        ("r.io/team/x", false),
    ];
    for (image, fits) in table {
        assert_eq!(super::fits(&provider(None), image), fits, "{image}");
    }
    let token = provider(Some(true)).token.unwrap();
    let of =
        |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), "1".to_owned())).collect::<BTreeMap<_, _>>();
    assert_eq!(annotations(&token, &of(&["r", "x"])), Some(of(&["r"])));
    assert_eq!(annotations(&token, &of(&["r", "o"])), Some(of(&["o", "r"])));
    assert_eq!(annotations(&token, &of(&["o"])), None);
}

#[test]
fn requests_are_upstreams() {
    let text = |account| String::from_utf8(request(&provider(None), "a.example/x", account)).unwrap();
    let head = format!(r#"{{"kind":"CredentialProviderRequest","apiVersion":"{V1}","image":"a.example/x""#);
    assert_eq!(text(None), format!("{head}}}\n"));
    let full = r#","serviceAccountToken":"t","serviceAccountAnnotations":{"r":"1"}}"#;
    assert_eq!(text(Some((&account("sa"), "t"))), format!("{head}{full}\n"));
}

#[test]
fn answers_that_are_used_and_not() {
    let read = |body: &str, per_token| answer(&provider(per_token), &printed(body), Some("t"));
    let full = r#""cacheKeyType":"Registry","cacheDuration":"5m","auth":{"a.example":{"username":"u","password":"t"}}"#;
    let found = read(full, None).unwrap();
    assert_eq!((found.scope, found.kept), (Scope::Registry, Some(Duration::from_secs(300))));
    assert_eq!(found.auth["a.example"].password, "t");
    assert!(!format!("{found:?}").contains("\"t\""), "{found:?}");
    assert_eq!(read(full, Some(true)).map(|a| a.auth.len()), Ok(1));
    assert_eq!(read(full, Some(false)), Err(AnswerError::Echo));
    assert_eq!(
        read(r#""cacheKeyType":"Global","auth":null"#, None).map(|a| (a.kept, a.auth.len())),
        Ok((None, 0))
    );
    assert_eq!(read(r#""cacheKeyType":"Pod""#, None), Err(AnswerError::Scope("Pod".to_owned())));
    assert_eq!(read(r#""auth":{}"#, None), Err(AnswerError::Scope(String::new())));
    assert_eq!(read(r#""cacheKeyType":"Image","secret":"geheim""#, None), Err(AnswerError::Form));
    let wrong = |text: &str| answer(&provider(None), text.as_bytes(), None).unwrap_err();
    for text in ["", "geheim", "[]", "{}"] {
        assert_eq!(wrong(text), AnswerError::Unreadable, "{text}");
    }
    let other = format!(r#"{{"apiVersion":"{V1}beta1","kind":"CredentialProviderResponse"}}"#);
    assert!(matches!(wrong(&other), AnswerError::Version { .. }));
    assert_eq!(wrong(&format!(r#"{{"apiVersion":"{V1}","kind":"Secret"}}"#)), AnswerError::Form);
}

#[test]
fn an_answer_holds_for_its_images_its_account_and_its_time() {
    let at = |seconds: u64| Mono(0).after(Duration::from_secs(seconds));
    let of = |scope, kept: Option<u64>| ProviderResponse {
        scope,
        kept: kept.map(Duration::from_secs),
        auth: [("a.example".to_owned(), Login { username: "u".to_owned(), password: "p".to_owned() })].into(),
    };
    let default = Duration::from_secs(60);
    for (scope, same, other_image, other_registry) in [
        (Scope::Image, true, false, false),
        (Scope::Registry, true, true, false),
        (Scope::Global, true, true, true),
    ] {
        let mut answers = CredentialCache::default();
        answers.keep("a.example/x", None, &of(scope, None), default, at(0));
        let mut holds = |image| answers.find(image, None, at(60)).is_some();
        let seen = (holds("a.example/x"), holds("a.example/y"), holds("b.example/x"));
        assert_eq!(seen, (same, other_image, other_registry), "{scope:?}");
        assert_eq!(answers.find("a.example/x", None, at(61)), None);
    }
    let mut answers = CredentialCache::default();
    answers.keep("a.example/x", None, &of(Scope::Image, Some(0)), default, at(0));
    answers.keep("a.example/y", None, &of(Scope::Image, None), Duration::ZERO, at(0));
    assert!(answers.kept.is_empty(), "neither is to be kept");

    let whom = |name: &str, token: &str, per_token| {
        For::new(provider(Some(per_token)).token.as_ref().unwrap(), account(name), token)
    };
    for (per_token, other_token) in [(false, true), (true, false)] {
        let mut answers = CredentialCache::default();
        let first = whom("sa", "t1", per_token);
        answers.keep("a.example/x", Some(first.clone()), &of(Scope::Image, None), default, at(0));
        assert!(answers.find("a.example/x", Some(&first), at(1)).is_some());
        let mut holds = |whom: Option<&For>| answers.find("a.example/x", whom, at(1)).is_some();
        assert_eq!(holds(Some(&whom("sa", "t2", per_token))), other_token);
        assert!(!holds(Some(&whom("sb", "t1", per_token))) && !holds(None));
        let mut changed = account("sa");
        changed.annotations.insert("o".to_owned(), "2".to_owned());
        assert!(!holds(Some(&For { account: changed, ..first })));
    }
    answers.keep("a.example/x", None, &of(Scope::Image, None), default, at(0));
    assert!(
        answers.find("b.example/x", None, at(2000)).is_none() && answers.kept.is_empty(),
        "it is forgotten"
    );
}
