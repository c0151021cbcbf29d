//! Compares a component with its declaration in the configuration: refusals, unused grants and the pin. Also returns
//! the configuration lines with which the component loads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agentd_api::plugin_tool::{Check, ToolPin, ToolProblem, ToolRefusal};
use agentd_plugin_host::{
    Admission, Capability, CommandGrant, ComponentRequests, Description, Grant, Host, Inspection, LoadTerms, Want,
    World, admit, steers, variables_between,
};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

use super::declared::Declared;
use super::{ToolError, inspect, source, test};
use agentd_host::directories::DirectoryOptions;

/// Compares the component with its declaration, which is found by `name`, by the file, or by the component's own
/// name.
pub(super) async fn check(
    host: &Host,
    file: &Path,
    name: Option<&str>,
    cases: &[PathBuf],
    places: &DirectoryOptions,
) -> Result<Check, ToolError> {
    let inspection = host.inspect(source(file)).await?;
    let declared = Declared::of(file, name, &inspection.description.name, places)?;
    let name = declared.name.clone();
    let requested = inspection.requested();
    let admission = admit(&requested, &declared.grant, declared.deny.as_ref());
    let pin = declared.pin.clone().map(|pinned| ToolPin { matches: pinned == inspection.sha256, pinned });
    let problem = problem(host, file, &name, &declared, pin.as_ref()).await;
    let mut set_variables = BTreeSet::new();
    for case in cases {
        set_variables.extend(test::variables(host, file, &inspection.description, case).await?);
    }
    let mut refused = refused(&admission);
    let mut unused = unused(&requested, &declared.grant);
    let variables = declared.grant.variables.clone().unwrap_or_default();
    let set_variables: Vec<&str> = set_variables.iter().map(String::as_str).collect();
    let (missing, idle) = variables_between(&variables, &set_variables);
    if !cases.is_empty() {
        refused.extend(missing.iter().map(|name| not_granted(name)));
        unused.extend(idle.iter().map(|pattern| format!("variables {pattern:?}")));
    }
    let is_provider = inspection.world == World::Provider;
    let undecided = (cases.is_empty() && is_provider).then(|| UNDECIDED.to_owned());
    let lines = lines(&name, file, &declared, &inspection, &admission, &missing);
    Ok(Check {
        name,
        declared_in: declared.file.map(|file| file.display().to_string()),
        pin,
        refused,
        unused,
        problem,
        undecided,
        lines,
        inspection: inspect::view(file, inspection),
    })
}

/// Remark of a check without cases.
const UNDECIDED: &str =
    "the plugin's variables are not compared with its grant: name its cases with --case, such as tests/case.toml";

/// Returns the refusal of a variable that a case sets.
fn not_granted(name: &str) -> ToolRefusal {
    let hint = steers(name).map(|does| format!("the variable is granted only by its exact name, since {does}"));
    ToolRefusal { what: format!("the plugin sets the variable {name:?}, which nothing grants"), hint, loads: true }
}

/// Returns the reason why the plugin would not be loaded with this declaration, if any.
async fn problem(
    host: &Host,
    file: &Path,
    name: &str,
    declared: &Declared,
    pin: Option<&ToolPin>,
) -> Option<ToolProblem> {
    let problem = |code: &str, message: String| Some(ToolProblem { code: code.to_owned(), message, hint: None });
    if declared.file.is_none() {
        return problem("plugin-not-declared", format!("no configuration file declares [plugins.{name}]"));
    }
    match pin {
        None => return problem("plugin-not-pinned", format!("plugins.{name} has no sha256")),
        Some(pin) if !pin.matches => {
            let message = format!("the file differs from the pinned file: plugins.{name}.sha256 is {}", pin.pinned);
            return problem("plugin-not-pinned", message);
        }
        Some(_) => {}
    }
    let terms = LoadTerms {
        name: Some(name.to_owned()),
        grant: declared.grant.clone(),
        deny: declared.deny.clone(),
        settings: declared.settings.clone(),
        any_variable: false,
        on_compile: None,
    };
    host.load_with(source(file), terms).await.err().map(|error| ToolError::from(error).problem())
}

fn refused(admission: &Admission) -> Vec<ToolRefusal> {
    let whole = admission.refused.iter().map(|refusal| ToolRefusal {
        what: format!("the plugin {refusal}"),
        hint: refusal.hint(),
        loads: false,
    });
    let parts = admission.narrowed.iter().map(|narrowed| {
        let (capability, reason) = (narrowed.capability, &narrowed.reason);
        let of = if narrowed.pattern.is_empty() { String::new() } else { format!(" {:?}", narrowed.pattern) };
        let why = if narrowed.denied { "the administrator denies" } else { "nothing grants" };
        ToolRefusal {
            what: format!("the plugin requests {capability}{of} ({reason}), which {why}"),
            hint: None,
            loads: true,
        }
    });
    whole.chain(parts).collect()
}

/// Returns granted patterns that the plugin does not request. Applies the comparison of requests and grant in
/// reverse.
fn unused(requested: &ComponentRequests, grant: &Grant) -> Vec<String> {
    let wanted = Grant::wanted(requested.wants.as_deref().unwrap_or_default());
    let mut unused = Vec::new();
    for capability in Capability::ALL {
        let Some(key) = key(capability).filter(|_| grant.allows(capability)) else { continue };
        if !wanted.allows(capability) {
            unused.push(key.to_owned());
            continue;
        }
        let want = Want { capability, patterns: grant.patterns(capability).to_vec(), reason: String::new() };
        let other_way = ComponentRequests { imports: requested.imports.clone(), wants: Some(vec![want]) };
        let missed = admit(&other_way, &wanted, None).narrowed;
        unused.extend(missed.into_iter().map(|missed| format!("{key} {:?}", missed.pattern)));
    }
    unused
}

/// Returns the key of a capability in a grant. Returns `None` for capabilities that are always granted.
fn key(capability: Capability) -> Option<&'static str> {
    match capability {
        Capability::Log | Capability::Clock => None,
        Capability::ShellEnvironment => Some("login-shell"),
        other => Some(other.as_str()),
    }
}

/// Returns the configuration lines with which the plugin loads without refusals, if lines have to change. The lines
/// contain the existing grant and the missing parts. Denied patterns stay denied.
fn lines(
    name: &str,
    file: &Path,
    declared: &Declared,
    inspection: &Inspection,
    admission: &Admission,
    missing: &[&str],
) -> Option<String> {
    let Inspection { description, sha256, imports, .. } = inspection;
    let pinned = declared.pin.as_ref() == Some(sha256);
    let mut grant = sufficient(description, imports, &declared.grant, admission);
    if !missing.is_empty() {
        let missing = missing.iter().map(|&name| name.to_owned());
        grant.variables = Some(grant.variables.into_iter().flatten().chain(missing).collect());
    }
    if declared.file.is_some() && pinned && grant == declared.grant {
        return None;
    }
    let mut table = Table::new();
    if declared.file.is_none() {
        let path = std::path::absolute(file).unwrap_or_else(|_| PathBuf::from(file));
        table.insert("file", text(&path.display().to_string()));
    }
    if !pinned {
        table.insert("sha256", text(sha256));
    }
    if grant != declared.grant {
        table.insert("grant", Item::Value(Value::InlineTable(granting(&grant))));
    }
    let mut plugins = Table::new();
    plugins.set_implicit(true);
    plugins.insert(name, Item::Table(table));
    let mut document = DocumentMut::new();
    document.insert("plugins", Item::Table(plugins));
    Some(document.to_string())
}

fn text(text: &str) -> Item {
    Item::Value(text.into())
}

/// Returns the smallest extension of the grant that refuses no request.
fn sufficient(description: &Description, imports: &[String], granted: &Grant, admission: &Admission) -> Grant {
    let mut missing: Vec<Want> = admission
        .narrowed
        .iter()
        .filter(|narrowed| !narrowed.denied)
        .map(|narrowed| Want {
            capability: narrowed.capability,
            patterns: vec![narrowed.pattern.clone()],
            reason: String::new(),
        })
        .collect();
    let imported = |capability: Capability| imports.iter().any(|import| import.contains(&format!("/{capability}@")));
    let whole = |want: &&Want| imported(want.capability) && !granted.allows(want.capability);
    missing.extend(description.wants.iter().filter(whole).cloned());
    let Grant { login_shell, script, command, file, network, mount, process, secret, variables: _ } =
        Grant::wanted(&missing);
    let granted_commands: BTreeSet<&str> = granted.command.iter().map(|command| command.run.as_str()).collect();
    let commands = command.into_iter().filter(|command| !granted_commands.contains(command.run.as_str()));
    let both = |granted: &[String], missing: Vec<String>| {
        let mut all = granted.to_vec();
        all.extend(missing.into_iter().filter(|pattern| !granted.contains(pattern)));
        all
    };
    Grant {
        login_shell: granted.login_shell || login_shell,
        script: both(&granted.script, script),
        command: granted.command.iter().cloned().chain(commands).collect(),
        file: both(&granted.file, file),
        network: both(&granted.network, network),
        mount: both(&granted.mount, mount),
        process: both(&granted.process, process),
        secret: both(&granted.secret, secret),
        variables: granted.variables.clone(),
    }
}

fn granting(grant: &Grant) -> InlineTable {
    let mut table = InlineTable::new();
    for capability in Capability::ALL {
        let Some(key) = key(capability).filter(|_| grant.allows(capability)) else { continue };
        let value = match capability {
            Capability::ShellEnvironment => Value::from(true),
            Capability::Command => Value::Array(grant.command.iter().map(command).collect::<Array>()),
            _ => array(&grant.patterns(capability)),
        };
        table.insert(key, value);
    }
    if let Some(variables) = &grant.variables {
        table.insert("variables", array(variables));
    }
    table
}

fn array(patterns: &[String]) -> Value {
    Value::Array(patterns.iter().map(String::as_str).collect::<Array>())
}

fn command(command: &CommandGrant) -> Value {
    if command.variables.is_empty() {
        return Value::from(command.run.as_str());
    }
    let mut table = InlineTable::new();
    table.insert("run", Value::from(command.run.as_str()));
    table.insert("variables", array(&command.variables));
    Value::InlineTable(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspection(imports: &[&str], wants: &[(Capability, &[&str])]) -> Inspection {
        let want = |(capability, patterns): &(Capability, &[&str])| Want {
            capability: *capability,
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            reason: "why".to_owned(),
        };
        Inspection {
            description: Description {
                name: "p".into(),
                version: "1".into(),
                summary: String::new(),
                settings: Vec::new(),
                wants: wants.iter().map(want).collect(),
                moment: None,
            },
            world: World::Provider,
            interface: "1.0.0",
            imports: imports.iter().map(|import| format!("agentd:plugin/{import}@1.0.0")).collect(),
            size: 1,
            sha256: "ab".repeat(32),
        }
    }

    fn granted(text: &str) -> Grant {
        toml::from_str(text).unwrap()
    }

    /// Returns the refusals, the unused grants and the lines.
    fn compare(inspection: &Inspection, declared: &Declared) -> (Vec<String>, Vec<String>, Option<String>) {
        let requested = inspection.requested();
        let admission = admit(&requested, &declared.grant, declared.deny.as_ref());
        let refused = refused(&admission).into_iter().map(|refusal| refusal.what).collect();
        let lines = lines("p", Path::new("/p.wasm"), declared, inspection, &admission, &[]);
        (refused, unused(&requested, &declared.grant), lines)
    }

    fn declared(grant: &str) -> Declared {
        let (file, pin) = (Some("/etc/agentd/agentd.toml".into()), Some("ab".repeat(32)));
        Declared { grant: granted(grant), file, pin, ..Declared::default() }
    }

    #[test]
    fn a_matching_grant_has_no_refusals_and_needs_no_lines() {
        let inspection = inspection(&["types", "log", "file"], &[(Capability::File, &["/opt/**"])]);
        assert_eq!(compare(&inspection, &declared("file = [\"/opt/**\"]")), (vec![], vec![], None));
    }

    #[test]
    fn missing_grants_are_reported_with_the_lines_that_grant_them() {
        let wants: &[(Capability, &[&str])] =
            &[(Capability::File, &["/opt/**", "/srv/*"]), (Capability::ShellEnvironment, &[])];
        let inspection = inspection(&["file", "shell-environment"], wants);
        let (refused, unused, lines) = compare(&inspection, &declared("file = [\"/opt/x/*\"]"));
        assert!(refused[0].contains("shell-environment") && refused[1].contains("/srv/*"), "{refused:?}");
        assert!(unused.is_empty(), "{unused:?}");
        let lines = lines.unwrap();
        assert_eq!(lines, "[plugins.p]\ngrant = { login-shell = true, file = [\"/opt/x/*\", \"/srv/*\"] }\n");
    }

    #[test]
    fn an_undeclared_plugin_gets_all_its_lines() {
        let inspection = inspection(&["file"], &[(Capability::File, &["/opt/**"])]);
        let (_, _, lines) = compare(&inspection, &Declared::default());
        let sha256 = "ab".repeat(32);
        let expected =
            format!("[plugins.p]\nfile = \"/p.wasm\"\nsha256 = \"{sha256}\"\ngrant = {{ file = [\"/opt/**\"] }}\n");
        assert_eq!(lines.unwrap(), expected);
    }

    #[test]
    fn unused_grants_are_reported() {
        let inspection = inspection(&["file"], &[(Capability::File, &["/opt/**"])]);
        let grant = "login-shell = true\nfile = [\"/opt/a\", \"/etc/**\"]\nprocess = [\"vpn\"]";
        let (refused, unused, lines) = compare(&inspection, &declared(grant));
        assert!(refused.is_empty() && lines.is_none());
        assert_eq!(unused, ["login-shell", "file \"/etc/**\"", "process"]);
    }

    #[test]
    fn the_lines_have_the_variables_of_the_plugin_and_of_its_commands() {
        let inspection = inspection(&["command"], &[(Capability::Command, &["/bin/a", "/bin/b"])]);
        let declared = declared("command = [{ run = \"/bin/a\", variables = [\"X_*\"] }]\nvariables = [\"LM_*\"]");
        let admission = admit(&inspection.requested(), &declared.grant, None);
        let lines = lines("p", Path::new("/p.wasm"), &declared, &inspection, &admission, &["PATH"]).unwrap();
        let expected = "[plugins.p]\ngrant = { command = [{ run = \"/bin/a\", variables = [\"X_*\"] }, \"/bin/b\"], \
            variables = [\"LM_*\", \"PATH\"] }\n";
        assert_eq!(lines, expected);
        assert!(not_granted("LD_PRELOAD").hint.is_some() && not_granted("A").hint.is_none());
    }

    #[test]
    fn no_line_grants_a_pattern_that_the_administrator_denies() {
        let inspection = inspection(&["file"], &[(Capability::File, &["/opt/**"])]);
        let deny = Some(granted("file = [\"**\"]"));
        let (refused, _, lines) = compare(&inspection, &Declared { deny, ..declared("file = [\"/opt/**\"]") });
        assert!(refused[0].contains("the administrator denies"), "{refused:?}");
        assert_eq!(lines, None);
    }
}
