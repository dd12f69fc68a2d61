//! Crate `models` alone knows model families: elsewhere a program is what its ops say.

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    /// Words that name a family, in lower case without separators.
    const WORDS: &[&str] =
        &["llama", "qwen", "deepseek", "gptoss", "mixtral", "mistral", "eagle3", "eagletopk"];

    /// Where such words stand all the same, and why.
    const EXCEPTIONS: &[(&str, &str)] = &[
        (
            "server/src/parse",
            "published formats of tool calls and reasoning, chosen by their names",
        ),
        (
            "server/src/openai/chat.rs",
            "one of those formats, whose channels end where others do not",
        ),
        ("cli/src/from_sglang/", "flags and variables of SGLang under the names they have there"),
    ];

    /// Folders of crates that measure or test what others do.
    const APART: &[&str] = &["models", "tests", "benches", "examples", "fuzz"];

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace holds this crate")
    }

    /// Source files below `dir` that are no tests.
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_code = [".rs", ".h", ".c", ".cpp", ".ir"].iter().any(|e| name.ends_with(e));
            let is_test = name == "tests" || name.ends_with("tests.rs");
            if path.is_dir() && !is_test && name != "target" && !name.starts_with('.') {
                sources(&path, found);
            } else if is_code && !is_test {
                found.push(path);
            }
        }
    }

    /// Modules that `text` declares for tests alone.
    fn test_modules(text: &str) -> impl Iterator<Item = &str> {
        text.split("#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split(&[';', ' ']).next())
    }

    /// Lines of code with a word of [`WORDS`], numbered: without comments and the tests at the end.
    fn named(text: &str) -> Vec<usize> {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let names = |line: &str| {
            let code = line.split("//").next().unwrap_or_default().to_lowercase();
            let plain: String = code.chars().filter(char::is_ascii_alphanumeric).collect();
            WORDS.iter().any(|word| plain.contains(word))
        };
        code.lines().enumerate().filter(|(_, line)| names(line)).map(|(i, _)| i + 1).collect()
    }

    #[test]
    fn models_alone_knows_families() {
        let mut files = Vec::new();
        for entry in fs::read_dir(root()).unwrap() {
            let path = entry.unwrap().path();
            let is_apart = APART.iter().any(|name| path.ends_with(name));
            if path.join("Cargo.toml").exists() && !is_apart {
                sources(&path, &mut files);
            }
        }
        assert!(files.len() > 300, "{} files", files.len());
        let texts: Vec<String> = files.iter().map(|f| fs::read_to_string(f).unwrap()).collect();
        let for_tests = |file: &Path| {
            let folder = file.parent().unwrap();
            let stem = file.file_stem().unwrap().to_string_lossy();
            let parents = files.iter().zip(&texts).filter(|(f, _)| {
                f.with_extension("") == *folder || (f.parent() == Some(folder) && *f != file)
            });
            parents.into_iter().any(|(_, text)| test_modules(text).any(|module| module == stem))
        };
        let mut used = vec![false; EXCEPTIONS.len()];
        let mut found = Vec::new();
        for (file, text) in files.iter().zip(&texts) {
            let lines = named(text);
            let path = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            if lines.is_empty() || path == "xtask/src/families.rs" || for_tests(file) {
                continue;
            }
            match EXCEPTIONS.iter().position(|(place, _)| path.starts_with(place)) {
                Some(i) => used[i] = true,
                None => found.extend(lines.iter().map(|line| format!("{path}:{line}"))),
            }
        }
        assert!(found.is_empty(), "a model family is named outside of `models`: {found:#?}");
        let idle: Vec<_> = EXCEPTIONS.iter().zip(used).filter(|(_, used)| !used).collect();
        assert!(idle.is_empty(), "exceptions that nothing needs: {idle:?}");
    }

    /// A family that is added has a word that this test looks for.
    #[test]
    fn every_family_has_a_word() {
        let text = fs::read_to_string(root().join("models/src/family.rs")).unwrap();
        let names: Vec<&str> = text.split('"').filter(|s| s.ends_with("ForCausalLM")).collect();
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            let known = WORDS.iter().any(|word| name.to_lowercase().starts_with(word));
            assert!(known, "{name} has no word here");
        }
    }

    #[test]
    fn comments_and_tests_may_name_what_they_like() {
        let text =
            "// Qwen3\nlet a = 1; // DeepSeek\n#[cfg(test)]\nmod tests {\n    \"qwen3\"\n}\n";
        assert_eq!(named(text), [0; 0]);
        assert_eq!(named("a\nmatch x { Gpt_Oss => 1 }\n"), [2]);
        assert_eq!(test_modules("#[cfg(test)]\nmod oracle;\n").collect::<Vec<_>>(), ["oracle"]);
    }
}
