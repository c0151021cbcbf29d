//! Variables that a plugin may set: exact names, or patterns. Patterns do not cover names for which [`steers`]
//! returns an effect.

use super::steering::steers;
use agentd_glob::Glob;

/// Maximum length of a pattern in bytes.
const LONGEST: usize = 4096;

/// A pattern of variable names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariablePattern {
    glob: Glob,
    /// Whether the pattern is an exact name.
    exact: bool,
}

impl VariablePattern {
    pub(crate) fn parse(pattern: &str) -> Result<Self, &'static str> {
        match pattern {
            "" => Err("a variable's name is not empty"),
            pattern if pattern.len() > LONGEST => Err("a pattern of a variable's name has at most 4096 bytes"),
            pattern if pattern.contains(['=', '\0']) => Err("a variable's name has no \"=\" and no NUL byte"),
            pattern => Ok(Self { glob: Glob::flat(pattern), exact: !pattern.contains(['*', '?']) }),
        }
    }

    /// Reports whether the pattern grants the name.
    fn grants(&self, name: &str) -> bool {
        self.glob.matches(name) && (self.exact || steers(name).is_none())
    }

    /// Reports whether the pattern denies the name. Denials have no exception.
    fn denies(&self, name: &str) -> bool {
        self.glob.matches(name)
    }
}

/// Reports whether one of the patterns grants the name.
pub(crate) fn granted(patterns: &[VariablePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.grants(name))
}

/// Reports whether one of the patterns denies the name.
pub(crate) fn denied(patterns: &[VariablePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.denies(name))
}

/// Variables that a provider may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variables {
    /// Any variable, for built-in plugins: they apply what the user's own shell and scripts set.
    Any,
    /// Variables that match a pattern.
    Of(Vec<VariablePattern>),
}

impl Default for Variables {
    fn default() -> Self {
        Self::Of(Vec::new())
    }
}

impl Variables {
    pub(crate) fn grants(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Of(patterns) => granted(patterns, name),
        }
    }

    pub(crate) fn denies(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Of(patterns) => denied(patterns, name),
        }
    }
}

/// Returns the names that no pattern grants, and the patterns that grant none of the names.
pub fn variables_between<'a>(patterns: &'a [String], names: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let parsed = |pattern: &&String| VariablePattern::parse(pattern).ok();
    let grants = |pattern: &VariablePattern, name: &&&str| pattern.grants(name);
    let all: Vec<VariablePattern> = patterns.iter().filter_map(|pattern| parsed(&pattern)).collect();
    let missing = names.iter().filter(|name| !granted(&all, name)).copied().collect();
    let is_unused =
        |pattern: &&String| parsed(pattern).is_some_and(|one| !names.iter().any(|name| grants(&one, &name)));
    (missing, patterns.iter().filter(is_unused).map(String::as_str).collect())
}

/// Returns the configuration line that grants these names.
pub fn line<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("{name:?}")).collect();
    format!("variables = [{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(patterns: &[&str]) -> Vec<VariablePattern> {
        patterns.iter().map(|pattern| VariablePattern::parse(pattern).unwrap()).collect()
    }

    #[test]
    fn a_pattern_grants_ordinary_names_and_a_steering_one_is_granted_by_its_name_alone() {
        for (patterns, name, expected) in [
            (&["LM_*"][..], "LM_LICENSE_FILE", true),
            (&["LM_*"], "XLM_A", false),
            (&["*"], "ANYTHING", true),
            (&["*"], "LD_PRELOAD", false),
            (&["*"], "PATH", false),
            (&["L*", "LD_*", "LD_PRELOA?"], "LD_PRELOAD", false),
            (&["LD_PRELOAD"], "LD_PRELOAD", true),
            (&["LD_PRELOAD"], "LD_AUDIT", false),
            (&["BASH_FUNC_ls%%"], "BASH_FUNC_ls%%", true),
            (&["BASH_FUNC_*%%"], "BASH_FUNC_ls%%", false),
            (&["PATH", "LM_*"], "PATH", true),
            (&[], "A", false),
        ] {
            assert_eq!(granted(&of(patterns), name), expected, "{patterns:?} {name}");
        }
        assert!(denied(&of(&["LD_*"]), "LD_PRELOAD") && denied(&of(&["*"]), "PATH"), "what is denied has no exception");
        assert!(!Variables::default().grants("A") && Variables::Any.grants("LD_PRELOAD"));
    }

    #[test]
    fn a_grant_is_compared_with_the_names_that_are_given() {
        let patterns = ["LM_*", "*", "NODE_OPTIONS"].map(str::to_owned);
        let (missing, unused) = variables_between(&patterns, &["A", "PATH"]);
        assert_eq!((missing, unused), (vec!["PATH"], vec!["LM_*", "NODE_OPTIONS"]));
    }

    #[test]
    fn what_is_no_name_is_no_pattern() {
        for pattern in ["", "A=B", "A\0", &"A".repeat(LONGEST + 1)] {
            assert!(VariablePattern::parse(pattern).is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn the_line_of_a_grant_has_the_names_as_a_configuration_has_them() {
        assert_eq!(line(["PATH", "A\"B"]), "variables = [\"PATH\", \"A\\\"B\"]");
    }
}
