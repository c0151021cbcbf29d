//! `resume.template`: the file with the template of the note, read together with the file that names it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::chain;
use agentd_note::Template;
use toml::de::DeTable;

use super::Flaws;
use super::flaw;

/// Key of the template.
pub(super) const KEY: [&str; 2] = ["resume", "template"];

/// Content of a template's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateFile {
    path: PathBuf,
    /// The text, or why the file cannot be read.
    text: Result<String, String>,
}

impl TemplateFile {
    /// Reads the template that a configuration file names, if it names one. A relative path starts at the directory
    /// of the configuration file.
    pub(super) fn of<E: std::error::Error>(
        file: &Path,
        content: &str,
        read: impl FnOnce(&Path) -> Result<String, E>,
    ) -> Option<Self> {
        let (document, _) = DeTable::parse_recoverable(content);
        let [table, key] = KEY;
        let named = document.get_ref().get(table)?.get_ref().get(key)?.get_ref().as_str()?.to_owned();
        let path = file.parent().unwrap_or(Path::new("/")).join(named);
        let text = read(&path).map_err(|error| chain(&error));
        Some(Self { path, text })
    }
}

/// The configured template of the note.
#[derive(Debug, Clone)]
pub struct NoteTemplate {
    /// The template's file.
    pub file: PathBuf,
    /// The template, or its mistake.
    pub template: Result<Arc<Template>, String>,
}

impl From<&TemplateFile> for NoteTemplate {
    fn from(file: &TemplateFile) -> Self {
        let text = file.text.as_ref().map_err(Clone::clone);
        let template = text.and_then(|text| match Template::parse(text) {
            Ok(template) => Ok(Arc::new(template)),
            Err(mistake) => Err(format!("the template {} is invalid: {mistake}", file.path.display())),
        });
        Self { file: file.path.clone(), template }
    }
}

/// Returns the mistake of the configured template.
pub(super) fn check(template: Option<&NoteTemplate>) -> Flaws {
    let mistake = template.and_then(|template| template.template.as_ref().err());
    mistake.map(|mistake| flaw(&KEY, format!("resume.template: {mistake}"))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use agentd_api::configuration::{Consequence, Mistake};

    use super::super::assemble::{Loaded, assemble};
    use super::super::files::{Sources, Text};
    use super::super::reload::combine;
    use super::*;

    #[derive(Debug)]
    struct Gone;

    impl fmt::Display for Gone {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("it is gone")
        }
    }

    impl std::error::Error for Gone {}

    const NAMED: &str = "[limits]\nlaunches = 2\n[resume]\ntemplate = \"note.j2\"\n";

    /// Returns a configuration file whose template has this text.
    fn file(path: &str, of_user: bool, template: Option<&str>) -> Text {
        let content = if template.is_some() { NAMED } else { "" };
        let read = |_: &Path| template.filter(|text| *text != "gone").map(str::to_owned).ok_or(Gone);
        let template = TemplateFile::of(Path::new(path), content, read);
        Text { path: path.into(), content: content.to_owned(), of_user, template }
    }

    fn sources() -> Sources {
        Sources { system: "/etc/agentd".into(), user: "/home/kim/agentd.toml".into(), named: false }
    }

    fn system(template: Option<&str>) -> Vec<Text> {
        vec![file("/etc/agentd/agentd.toml", false, template)]
    }

    fn user(template: Option<&str>) -> Text {
        file("/home/kim/agentd.toml", true, template)
    }

    fn in_force(loaded: &Loaded) -> Option<(&str, bool)> {
        let template = loaded.config.resume.note_template.as_ref()?;
        Some((template.file.to_str().unwrap(), template.template.is_ok()))
    }

    #[test]
    fn the_template_lies_beside_the_file_that_names_it_and_the_users_comes_last() {
        let loaded = assemble(system(Some("a")), Some(user(Some("b"))), &sources());
        assert_eq!((in_force(&loaded), loaded.read.mistakes.len()), (Some(("/home/kim/note.j2", true)), 0));
        let loaded = assemble(system(Some("a")), Some(user(None)), &sources());
        assert_eq!(in_force(&loaded), Some(("/etc/agentd/note.j2", true)));
        assert_eq!(in_force(&assemble(system(None), None, &sources())), None);
        let absolute =
            TemplateFile::of(Path::new("/a/b.toml"), "resume.template = '/c/d.j2'", |_| Ok::<_, Gone>("x".into()));
        assert_eq!(absolute.unwrap().path, Path::new("/c/d.j2"));
    }

    #[test]
    fn a_mistake_names_both_files_and_the_line_and_leaves_the_administrators_template_in_force() {
        for (text, words) in [
            ("x\n{{ nmae }}", "the template /home/kim/note.j2 is invalid: line 2: "),
            ("x\n{% if %}", "the template /home/kim/note.j2 is invalid: line 2: syntax error"),
            ("gone", "resume.template: it is gone"),
        ] {
            let loaded = assemble(system(Some("a")), Some(user(Some(text))), &sources());
            let [mistake] = &loaded.read.mistakes[..] else { panic!("{:#?}", loaded.read.mistakes) };
            let place = (mistake.file.as_deref(), mistake.line, mistake.key.as_str(), mistake.consequence);
            let toml = Some(Path::new("/home/kim/agentd.toml"));
            assert_eq!(place, (toml, Some(4), "resume.template", Consequence::LaunchesRefused));
            assert!(mistake.message.contains(words), "{mistake}");
            assert_eq!(in_force(&loaded), Some(("/etc/agentd/note.j2", true)));
        }
    }

    #[test]
    fn a_reload_keeps_the_former_text_of_a_template_and_sees_a_new_one() {
        let before = assemble(system(None), Some(user(Some("former"))), &sources()).read;
        let again = |text: &str| combine(&system(None), Ok(Some(user(Some(text)))), &sources(), &before).unwrap();
        let kept = again("{{ nmae }}");
        let consequences = |mistakes: &[Mistake]| mistakes.iter().map(|one| one.consequence).collect::<Vec<_>>();
        assert_eq!(consequences(&kept.read.mistakes), [Consequence::FormerInForce]);
        assert_eq!(in_force(&kept), Some(("/home/kim/note.j2", true)));
        assert_eq!(kept.read.changed_since(&before), Vec::<String>::new());
        assert_eq!(again("new").read.changed_since(&before), ["resume.template"]);
    }
}
