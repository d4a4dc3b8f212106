//! Files that the certification programme (cncf/k8s-conformance) asks for in addition to `e2e.log` and
//! `junit_01.xml`. Pure.
//!
//! In: the options of a certified run, its selected tests and their results. Out: `PRODUCT.yaml` with what this
//! checkout knows of the product, `README.md` with the commands that give the same results. Invariant: a control with
//! the upstream kubelet is no product.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Options;
use super::kept::TestResult;
use super::selection::Test;
use super::summary;

/// The facts of `PRODUCT.yaml` that its submitter adds.
const OF_THE_SUBMITTER: &str =
    "vendor, website_url, repo_url, documentation_url, product_logo_url, contact_email_address";

/// What is certified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Product {
    command: String,
    is_control: bool,
    kubernetes: &'static str,
}

impl Product {
    /// The product of a certified run; nothing for other runs.
    pub(super) fn of(options: &Options, kubernetes: &'static str) -> Option<Product> {
        options.certified.then(|| Product {
            command: command(options),
            is_control: options.upstream,
            kubernetes,
        })
    }

    /// Names and contents of the files.
    pub(super) fn files(
        &self,
        tests: &[Test],
        results: &BTreeMap<String, TestResult>,
    ) -> Vec<(&'static str, String)> {
        let mut files = vec![("README.md", self.readme(tests, results))];
        if !self.is_control {
            files.push(("PRODUCT.yaml", facts()));
        }
        files
    }

    fn readme(&self, tests: &[Test], results: &BTreeMap<String, TestResult>) -> String {
        let title = if self.is_control {
            "Control: the upstream kubelet in the agent's place".to_owned()
        } else {
            format!("Orlop {}", env!("CARGO_PKG_VERSION"))
        };
        let commits: BTreeSet<&str> = tests
            .iter()
            .filter_map(|test| results.get(&test.name))
            .map(|kept| kept.commit.as_str())
            .collect();
        let commits: Vec<&str> = commits.into_iter().collect();
        let (counts, missing) = (summary::counts(tests, results), summary::missing(tests, results));
        let (kubernetes, command) = (self.kubernetes, &self.command);
        let mut text = format!("# {title}\n\nThe conformance tests of Kubernetes {kubernetes}.\n\n");
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "* Tests: {} selected; {counts}, {missing} not run.\n* Commits of the checkout: {}.\n\n",
            tests.len(),
            if commits.is_empty() { "none".to_owned() } else { commits.join(", ") },
        );
        let _ = write!(
            text,
            "The same command runs what has no result or failed, until all tests have passed:\n\n```\n{command}\n```\n\n\
             `e2e.log` has the output of all parts, `junit_01.xml` the last result of each test, `version.txt` the \
             versions of control plane and nodes in each session.\n"
        );
        text
    }
}

/// The command that goes on with these results, with the options that matter to them.
fn command(options: &Options) -> String {
    let mut words = vec!["cargo e2e conformance --certified".to_owned()];
    words.push(match options.resume.as_deref() {
        None | Some(super::session::OWN) => "--resume".to_owned(),
        Some(name) => format!("--resume={name}"),
    });
    words.extend(options.vm.then(|| "--vm".to_owned()));
    words.extend(options.upstream.then(|| "--upstream".to_owned()));
    words.extend(options.nodes.map(|nodes| format!("--nodes {nodes}")));
    words.extend(options.proxy_mode.map(|mode| format!("--proxy-mode {}", mode.name())));
    words.push(format!("--procs {}", options.procs));
    words.join(" ")
}

fn facts() -> String {
    format!(
        "# Its submitter adds: {OF_THE_SUBMITTER}.\n\
         name: \"Orlop\"\n\
         version: \"v{}\"\n\
         type: \"distribution\"\n\
         description: \"An immutable appliance OS whose node agent is a kubelet written in Rust\"\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::report::Verdict;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn product(words: &str) -> Option<Product> {
        let words = std::iter::once("conformance").chain(words.split_whitespace());
        Product::of(&Cli::try_parse_from(words).unwrap().options, "v1.36.3")
    }

    fn names(product: &Product) -> Vec<&'static str> {
        product.files(&[], &BTreeMap::new()).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn only_a_certified_run_has_a_product_and_a_control_is_none() {
        assert_eq!(product("--resume"), None);
        assert_eq!(names(&product("--certified").unwrap()), ["README.md", "PRODUCT.yaml"]);
        let control = product("--certified --upstream").unwrap();
        assert_eq!(names(&control), ["README.md"]);
        assert!(control.readme(&[], &BTreeMap::new()).starts_with("# Control: the upstream kubelet"));
    }

    #[test]
    fn the_readme_has_the_command_that_goes_on() {
        let said = |words: &str| product(words).unwrap().command;
        assert_eq!(said("--certified"), "cargo e2e conformance --certified --resume --procs 4");
        assert_eq!(
            said("--certified --resume=mine --vm --nodes 3 --proxy-mode ipvs --procs 2 --part 20"),
            "cargo e2e conformance --certified --resume=mine --vm --nodes 3 --proxy-mode ipvs --procs 2"
        );
    }

    #[test]
    fn the_readme_counts_the_selected_tests() {
        let test = |name: &str| Test { name: name.into(), group: "g".into() };
        let kept = |name: &str, result: Verdict, commit: &str| {
            let (test, commit) = (name.to_owned(), commit.to_owned());
            let (date, message) = (String::new(), String::new());
            (name.to_owned(), TestResult { test, result, seconds: 1.0, commit, date, message })
        };
        let results = BTreeMap::from([
            kept("a", Verdict::Passed, "two"),
            kept("b", Verdict::Failed, "one"),
            kept("of another selection", Verdict::Passed, "three"),
        ]);
        let text = product("--certified").unwrap().readme(&[test("a"), test("b"), test("c")], &results);
        assert!(text.contains("\n* Tests: 3 selected; 1 passed, 1 failed, 1 not run.\n"), "{text}");
        assert!(text.contains("\n* Commits of the checkout: one, two.\n"), "{text}");
    }

    #[test]
    fn the_facts_are_lines_of_yaml() {
        for line in facts().lines().filter(|line| !line.starts_with('#')) {
            let (key, value) = line.split_once(": ").unwrap();
            assert!(key.bytes().all(|c| c.is_ascii_lowercase()), "{line}");
            assert!(value.len() > 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        assert!(facts().contains("\ntype: \"distribution\"\n"));
    }
}
