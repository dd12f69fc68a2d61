//! Every format: what real outputs mean, and what no output may do.

use super::*;
use proptest::prelude::*;
use serde_json::json;

const TOOLS: [ToolFormat; 8] = [
    ToolFormat::Hermes,
    ToolFormat::Qwen3Coder,
    ToolFormat::DeepSeekV3,
    ToolFormat::DeepSeekV31,
    ToolFormat::DeepSeekV32,
    ToolFormat::GptOss,
    ToolFormat::Llama3,
    ToolFormat::Json,
];
const REASONING: [Option<ReasoningFormat>; 4] = [
    None,
    Some(ReasoningFormat::Qwen3),
    Some(ReasoningFormat::DeepSeekR1),
    Some(ReasoningFormat::GptOss),
];

/// `get_weather(city: string, days: integer, unit: string or null)`, `get_time()` and `a.b`.
fn offered() -> Arc<ToolSet> {
    let weather = json!({"name": "get_weather", "parameters": {"properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": ["string", "null"]},
    }}});
    let tools = [weather, json!({"name": "get_time"}), json!({"name": "a.b"})];
    let tools: Vec<_> = tools.into_iter().map(|f| json!({"function": f})).collect();
    Arc::new(ToolSet::parse(&tools).unwrap())
}

fn reading(tools: Option<ToolFormat>, reasoning: Option<ReasoningFormat>) -> Reading {
    Reading {
        tools,
        reasoning,
        opening: Opening::Free,
        separates_reasoning: true,
        offered: offered(),
    }
}

/// Events with neighbours of a kind joined.
fn events<'a>(reading: &Reading, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Event> {
    let mut parser = Parser::new(reading);
    let mut all: Vec<Event> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut joined: Vec<Event> = Vec::new();
    for event in all {
        match (joined.last_mut(), &event) {
            (Some(Event::Reasoning(last)), Event::Reasoning(text))
            | (Some(Event::Content(last)), Event::Content(text))
            | (Some(Event::Arguments(last)), Event::Arguments(text)) => last.push_str(text),
            _ => joined.push(event),
        }
    }
    joined
}

fn message(reading: &Reading, text: &str) -> Message {
    let mut message = Message::default();
    events(reading, [text]).into_iter().for_each(|event| message.add(event));
    message
}

/// What `text` means: reasoning, content and calls.
#[track_caller]
fn check(reading: &Reading, text: &str, reasoning: &str, content: &str, calls: &[(&str, &str)]) {
    let message = message(reading, text);
    assert_eq!(message.reasoning, reasoning, "reasoning of {text:?}");
    assert_eq!(message.content, content, "content of {text:?}");
    let found: Vec<_> =
        message.calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
    assert_eq!(found, calls, "calls of {text:?}");
    let characters = text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()]);
    assert_eq!(events(reading, characters), events(reading, [text]), "{text:?} in characters");
}

#[test]
fn hermes() {
    let reading = &reading(Some(ToolFormat::Hermes), Some(ReasoningFormat::Qwen3));
    check(
        reading,
        "<think>\nThe user wants\n\nthe weather.\n</think>\n\nLet me look.\n<tool_call>\n\
         {\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\u{f6}ln \\\"x\\\"\", \"days\": 2}}\n\
         </tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
        "The user wants\n\nthe weather.",
        "Let me look.",
        &[("get_weather", "{\"city\": \"K\u{f6}ln \\\"x\\\"\", \"days\": 2}"), ("get_time", "{}")],
    );
    for (text, content, calls) in [
        ("Hi, 1 < 2 <b>", "Hi, 1 < 2 <b>", vec![]),
        // Other orders, names, and shapes of the arguments.
        (
            "<tool_call>{\"arguments\": {\"a\": 1}, \"id\": 7, \"name\": \"get_time\"}</tool_call>",
            "",
            vec![("get_time", "{\"a\": 1}")],
        ),
        (
            "<tool_call>{\"name\": \"get_time\", \"parameters\": \"{\\\"a\\\": 1}\"}</tool_call>",
            "",
            vec![("get_time", "{\"a\": 1}")],
        ),
        ("<tool_call>{\"name\": \"get_time\"}</tool_call>", "", vec![("get_time", "{}")]),
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": null}</tool_call> ok",
            "ok",
            vec![("get_time", "{}")],
        ),
        // A tag within a string is text.
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>",
            "",
            vec![("get_time", "{\"a\": \"</tool_call>\"}")],
        ),
        // Braces are missing or too many.
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"a\": 1}</tool_call>a b",
            "a b",
            vec![("get_time", "{\"a\": 1}")],
        ),
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}}</tool_call>",
            "",
            vec![("get_time", "{}")],
        ),
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"a\": </tool_call>x",
            "x",
            vec![("get_time", "{\"a\": ")],
        ),
        // Tags are missing.
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}\n{\"name\": \"a.b\"}",
            "",
            vec![("get_time", "{}"), ("a.b", "{}")],
        ),
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}\nDone.",
            "Done.",
            vec![("get_time", "{}")],
        ),
        // Nobody's function, no JSON, and an end too early.
        (
            "a <tool_call>\n{\"name\": \"nope\", \"arguments\": {}}\n</tool_call>",
            "a <tool_call>\n{\"name\": \"nope\", \"arguments\": {}}\n</tool_call>",
            vec![],
        ),
        ("<tool_call>get_time()</tool_call>", "<tool_call>get_time()</tool_call>", vec![]),
        ("<tool_call>\n{\"name\": \"get_t", "<tool_call>\n{\"name\": \"get_t", vec![]),
        (
            "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"a\": \"b",
            "",
            vec![("get_time", "{\"a\": \"b")],
        ),
        ("</tool_call>", "</tool_call>", vec![]),
    ] {
        check(reading, text, "", content, &calls);
    }
}

#[test]
fn qwen3_coder() {
    let reading = &reading(Some(ToolFormat::Qwen3Coder), None);
    check(
        reading,
        "I will look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n\n\
         City\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nnull\n\
         </parameter>\n<parameter=other>\n4\n</parameter>\n</function>\n</tool_call>",
        "",
        "I will look.",
        &[(
            "get_weather",
            "{\"city\": \"New \\\"York\\\"\\n\\nCity\", \"days\": 3, \"unit\": null, \"other\": \"4\"}",
        )],
    );
    for (text, content, calls) in [
        // Without the outer tags, and without parameters.
        ("<function=get_time>\n</function>", "", vec![("get_time", "{}")]),
        // A value of the wrong type is a string.
        (
            "<tool_call><function=get_weather><parameter=days>many</parameter></function></tool_call>",
            "",
            vec![("get_weather", "{\"days\": \"many\"}")],
        ),
        (
            "<function=get_weather><parameter=unit>C</parameter></function>",
            "",
            vec![("get_weather", "{\"unit\": \"C\"}")],
        ),
        // Tags that are not of a call are part of a value; closing tags may be missing.
        (
            "<function=get_weather><parameter=city><b>x</b></parameter></function>",
            "",
            vec![("get_weather", "{\"city\": \"<b>x</b>\"}")],
        ),
        (
            "<function=get_weather>\n<parameter=city>\nx\n<parameter=days>\n1\n</function>",
            "",
            vec![("get_weather", "{\"city\": \"x\", \"days\": 1}")],
        ),
        (
            "<tool_call>\n<function=get_time>\n</tool_call>\n<tool_call>\n<function=a.b>\n\
             </function>\n</tool_call>",
            "",
            vec![("get_time", "{}"), ("a.b", "{}")],
        ),
        // Cut off within a string, within a number, before the name.
        (
            "<function=get_weather><parameter=city>\nNe",
            "",
            vec![("get_weather", "{\"city\": \"Ne")],
        ),
        ("<function=get_weather><parameter=days>\n1", "", vec![("get_weather", "{\"days\": 1")]),
        ("<tool_call>\n<function=get_we", "<tool_call>\n<function=get_we", vec![]),
        (
            "<tool_call><function=nope></function></tool_call>",
            "<tool_call><function=nope></function></tool_call>",
            vec![],
        ),
        ("<tool_call>x", "<tool_call>x", vec![]),
    ] {
        check(reading, text, "", content, &calls);
    }
}

#[test]
fn deepseek() {
    let v3 = "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n\
              ```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
              <｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let v31 = "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>\
               {\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}\
               <｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let calls = [("get_weather", "{\"city\": \"Rome\"}"), ("get_time", "{}")];
    for format in [ToolFormat::DeepSeekV3, ToolFormat::DeepSeekV31] {
        let reading = &reading(Some(format), Some(ReasoningFormat::DeepSeekR1));
        for text in [v3, v31] {
            check(reading, &format!("Hm.\n</think>\n\n{text}"), "Hm.", "Sure.", &calls);
            check(reading, &format!("<think>\nHm.\n</think>\n\n{text}"), "Hm.", "Sure.", &calls);
        }
        check(reading, "Hm, and no end", "Hm, and no end", "", &[]);
        for (text, content, calls) in [
            (
                "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜>",
                "",
                vec![("get_time", "{}")],
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nope<｜tool▁sep｜>{}",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nope<｜tool▁sep｜>{}",
                vec![],
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_ti",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_ti",
                vec![],
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"a\": 1",
                "",
                vec![("get_time", "{\"a\": 1")],
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"a\": 1\
                 <｜tool▁call▁end｜><｜tool▁calls▁end｜>b",
                "b",
                vec![("get_time", "{\"a\": 1")],
            ),
        ] {
            check(reading, &format!("x</think>{text}"), "x", content, &calls);
        }
    }
}

#[test]
fn deepseek_v32() {
    let reading = &reading(Some(ToolFormat::DeepSeekV32), Some(ReasoningFormat::Qwen3));
    check(
        reading,
        "Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\">New\n\"York\"\n</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_time\">\n</｜DSML｜invoke>\n\
         </｜DSML｜function_calls>",
        "",
        "Sure.",
        &[
            ("get_weather", "{\"city\": \"New\\n\\\"York\\\"\\n\", \"days\": [1, 2]}"),
            ("get_time", "{}"),
        ],
    );
    check(
        reading,
        "<｜DSML｜tool_calls><｜DSML｜invoke name=\"get_time\">{\"a\": \"</｜DSML｜invoke>\"}\
         </｜DSML｜invoke></｜DSML｜tool_calls>",
        "",
        "",
        &[("get_time", "{\"a\": \"</｜DSML｜invoke>\"}")],
    );
    let unknown = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"nope\">";
    check(reading, unknown, "", unknown, &[]);
}

#[test]
fn harmony() {
    let reading = &reading(Some(ToolFormat::GptOss), Some(ReasoningFormat::GptOss));
    check(
        reading,
        "<|channel|>analysis<|message|>The weather,\nthen.<|end|><|start|>assistant<|channel|>\
         commentary<|message|>Looking.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>",
        "The weather,\nthen.",
        "Looking.",
        &[("get_weather", "{\"city\":\"Oslo\"}")],
    );
    for (text, reasoning, content, calls) in [
        ("<|channel|>final<|message|>Hi \n<|return|>", "", "Hi \n", vec![]),
        ("Hi", "", "Hi", vec![]),
        // The recipient before the channel; two calls; no arguments.
        (
            "<|start|>assistant to=functions.a.b<|channel|>commentary<|message|>{}<|call|>\
             <|start|>assistant<|channel|>commentary to=functions.get_time<|message|><|call|>",
            "",
            "",
            vec![("a.b", "{}"), ("get_time", "{}")],
        ),
        // Cut off in a header and in arguments.
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>fi", "a", "", vec![]),
        (
            "<|channel|>commentary to=functions.get_time<|message|>{\"a\": 1",
            "",
            "",
            vec![("get_time", "{\"a\": 1")],
        ),
        (
            "<|channel|>commentary to=functions.nope <|constrain|>json<|message|>{}<|call|>",
            "",
            "<|channel|>commentary to=functions.nope <|constrain|>json<|message|>{}",
            vec![],
        ),
    ] {
        check(reading, text, reasoning, content, &calls);
    }
    let together = &Reading { separates_reasoning: false, ..reading.clone() };
    let text = "<|channel|>analysis<|message|>a <|end|><|channel|>final<|message|>b<|return|>";
    check(together, text, "", "a b", &[]);
}

#[test]
fn llama3() {
    let reading = &reading(Some(ToolFormat::Llama3), None);
    let call = "{\"name\": \"get_time\", \"parameters\": {\"a\": 1}}";
    let expected = ("get_time", "{\"a\": 1}");
    for (text, content, calls) in [
        (call.to_owned(), "", vec![expected]),
        (format!("<|python_tag|>{call}"), "", vec![expected]),
        (format!("{call}; {call}"), "", vec![expected, expected]),
        (format!("Well: {call}"), &*format!("Well: {call}"), vec![]),
        (format!("Well.\n<|python_tag|>{call}"), "Well.", vec![expected]),
        ("{\"name\": \"Bob\", \"age\": 3}".into(), "{\"name\": \"Bob\", \"age\": 3}", vec![]),
        ("{\"name\": \"get_time\"}".into(), "{\"name\": \"get_time\"}", vec![]),
        ("{\"a\": [1, 2]} ".into(), "{\"a\": [1, 2]} ", vec![]),
        ("<|python_tag|>print(1)".into(), "<|python_tag|>print(1)", vec![]),
    ] {
        check(reading, &text, "", content, &calls);
    }
}

#[test]
fn reasoning_begins_as_the_prompt_says() {
    let qwen = reading(None, Some(ReasoningFormat::Qwen3));
    let open = Reading { opening: Opening::of_prompt("a\n<think>\n"), ..qwen.clone() };
    let closed = Reading { opening: Opening::of_prompt("<think>\n\n</think>\n\n"), ..qwen.clone() };
    check(&qwen, " \n<think>a </think>\n b ", "a", "b ", &[]);
    check(&qwen, " b <think>a</think>", "", " b <think>a</think>", &[]);
    check(&qwen, "<think>a <b> </thin", "a <b> </thin", "", &[]);
    check(&qwen, "<think>a</think>", "a", "", &[]);
    check(&open, "a\n</think>\n\nb", "a", "b", &[]);
    check(&open, "<think>\na</think>b</think>", "a", "b</think>", &[]);
    check(&closed, "<think>a</think>", "", "<think>a</think>", &[]);
    let together = Reading { separates_reasoning: false, ..open };
    check(&together, "a\n</think>\n\nb", "", "a\n</think>\n\nb", &[]);
    assert_eq!(Opening::of_answer("<think>a"), Opening::Open);
    assert_eq!(Opening::of_answer("<think>a</think>b"), Opening::Closed);
}

#[test]
fn without_functions_calls_are_text() {
    for format in TOOLS {
        let reading = &Reading { offered: Arc::default(), ..reading(Some(format), None) };
        let text = "<tool_call>{\"name\": \"get_time\"}</tool_call> \n";
        check(reading, text, "", text, &[]);
    }
}

#[test]
fn arguments_stream_as_they_come() {
    for (format, text) in [
        (
            ToolFormat::Hermes,
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ro",
        ),
        (ToolFormat::Qwen3Coder, "<function=get_weather><parameter=city>Ro"),
        (ToolFormat::DeepSeekV3, "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Ro"),
        (
            ToolFormat::DeepSeekV32,
            "<｜DSML｜invoke name=\"get_weather\"><｜DSML｜parameter name=\"city\" string=\"true\">Ro",
        ),
        (
            ToolFormat::GptOss,
            "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Ro",
        ),
        (ToolFormat::Llama3, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Ro"),
    ] {
        let mut parser = Parser::new(&reading(Some(format), None));
        let expected =
            [Event::Start("get_weather".into()), Event::Arguments("{\"city\": \"Ro".into())];
        assert_eq!(parser.push(text), expected, "{format:?}");
        assert_eq!(parser.push("me"), [Event::Arguments("me".into())], "{format:?}");
    }
}

/// Pieces of all formats, words, and what is none of them.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=get_weather>",
        "</function>",
        "<function=",
        "<parameter=city>",
        "<parameter=days>",
        "</parameter>",
        "{\"name\": \"get_time\"",
        ", \"arguments\": ",
        "{\"a\": [1, \"}\"]}",
        "{",
        "}",
        "\"",
        "\\",
        "[",
        "]",
        ":",
        ",",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "function",
        "get_time",
        "\n```json\n",
        "\n```",
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜invoke name=\"get_time\">",
        "</｜DSML｜invoke>",
        "<｜DSML｜parameter name=\"a\" string=\"true\">",
        "</｜DSML｜parameter>",
        "<|start|>",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.get_time",
        "<|constrain|>",
        "json",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|python_tag|>",
        ";",
        "<think>",
        "</think>",
        "<",
        "</",
        " ",
        "\n",
        "é",
        "天气",
        "W1",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn any_reading() -> impl Strategy<Value = Reading> {
    let openings = [Opening::Free, Opening::Open, Opening::Closed];
    (
        prop::option::of(prop::sample::select(TOOLS.to_vec())),
        prop::sample::select(REASONING.to_vec()),
        prop::sample::select(openings.to_vec()),
        any::<bool>(),
    )
        .prop_map(|(tools, reasoning, opening, separates_reasoning)| Reading {
            opening,
            separates_reasoning,
            ..reading(tools, reasoning)
        })
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn cutting_the_text_changes_nothing(
        reading in any_reading(),
        text in prop_oneof![soup(), any::<String>()],
        cuts in prop::collection::vec(0usize..200, 0..12),
    ) {
        let mut cuts: Vec<usize> =
            cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts {
            pieces.push(&text[start..cut]);
            start = cut;
        }
        pieces.push(&text[start..]);
        prop_assert_eq!(events(&reading, pieces), events(&reading, [text.as_str()]));
    }

    #[test]
    fn text_without_calls_is_not_lost(
        reading in any_reading(),
        text in prop_oneof![soup(), any::<String>()],
    ) {
        let message = message(&reading, &text);
        prop_assume!(message.calls.is_empty());
        let found = without_space(&format!("{}{}", message.reasoning, message.content));
        let mut source = text.clone();
        // Tags that were understood are no text.
        if reading.tools == Some(ToolFormat::GptOss)
            || reading.reasoning == Some(ReasoningFormat::GptOss)
        {
            prop_assume!(!text.contains("<|"));
        } else if reading.reasoning.is_some() && reading.separates_reasoning {
            source = source.replace("<think>", "").replace("</think>", "");
            let found = found.replace("<think>", "").replace("</think>", "");
            prop_assert_eq!(found, without_space(&source));
            return Ok(());
        }
        prop_assert_eq!(found, without_space(&source));
    }

    #[test]
    fn words_outside_calls_are_not_lost(reading in any_reading(), text in soup()) {
        // Words between complete calls, of every format at once.
        let text = format!(
            "W1<tool_call>{{\"name\": \"get_time\"}}</tool_call>W2 <function=get_time></function>\
             W3<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>W4\
             <｜DSML｜invoke name=\"get_time\"></｜DSML｜invoke>W5{text}"
        );
        let message = message(&reading, &text);
        let all = format!("{}{}", message.reasoning, message.content);
        for word in ["W1", "W2", "W3", "W4", "W5"] {
            prop_assert!(all.contains(word), "{} of {:?} in {:?}", word, text, all);
        }
    }

    #[test]
    fn events_make_sense(reading in any_reading(), text in soup()) {
        let mut is_open = false;
        for event in events(&reading, [text.as_str()]) {
            match event {
                Event::Start(name) => {
                    prop_assert!(!is_open && reading.offered.has(&name));
                    is_open = true;
                }
                Event::Arguments(_) => prop_assert!(is_open),
                Event::End => prop_assert!(std::mem::replace(&mut is_open, false)),
                Event::Reasoning(_) => prop_assert!(reading.reasoning.is_some()),
                Event::Content(_) => {}
            }
        }
        prop_assert!(!is_open);
    }
}
