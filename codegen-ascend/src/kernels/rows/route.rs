//! The choice of experts.

use super::{emit::Gen, ops::float};
use crate::kernels::Declined;
use ir::{RouteScore, RouteSpec, ValueId};

/// Below every score, and what a chosen one becomes.
const NEVER: f32 = -3.0e38;

/// Scores by vector instructions; then the largest is taken out again and again, and the chosen are
/// put in ascending order by the scalar unit.
pub(super) fn route(
    g: &mut Gen<'_>,
    args: &[ValueId],
    outs: &[ValueId],
    spec: &RouteSpec,
) -> Result<(), Declined> {
    let experts = g.row_len(args[0]);
    let logits = g.arg(args[0])?;
    let bias = args.get(1).map(|&b| g.vector(b)).transpose()?;
    let (ids, weights) = (g.define(outs[0]), g.define(outs[1]));
    let k = spec.k;
    let (scores, choice) = (g.temp(experts, "scores"), g.temp(experts, "choice"));
    let (partial, best) = (g.reduction_work(experts), g.temp(8, "best"));
    let [s, c, p, b] = [&scores, &choice, &partial, &best].map(|t| t.name.clone());
    let n = experts;
    match spec.score {
        RouteScore::Softmax => {
            let block = g.temp(64, "block");
            let f = block.name.clone();
            for line in [
                format!("ReduceMax({b}, {logits}, {p}, {n});"),
                "Step();".to_owned(),
                format!("Muls({b}, {b}, -1.0f, 1);"),
                "Step();".to_owned(),
                format!("Spread({f}, {b});"),
                format!("AddBlock({s}, {logits}, {f}, {n});"),
                format!("Exp({s}, {s}, {n});"),
                "Step();".to_owned(),
                format!("ReduceSum({b}, {s}, {p}, {n});"),
                "Step();".to_owned(),
                format!("Spread({f}, {b});"),
                format!("DivBlock({s}, {s}, {f}, {n});"),
            ] {
                g.line(line);
            }
            g.free(block);
        }
        RouteScore::Sigmoid => {
            for line in [
                format!("ExpNegated({c}, {logits}, {n});"),
                format!("Duplicate({s}, 1.0f, {n});"),
                "Step();".to_owned(),
                format!("Div({s}, {s}, {c}, {n});"),
                "Step();".to_owned(),
            ] {
                g.line(line);
            }
        }
    }
    match &bias {
        Some(bias) => g.line(format!("Add({c}, {s}, {bias}, {n});")),
        None => g.line(format!("DataCopy({c}, {s}, {});", n.next_multiple_of(8))),
    }
    g.line("VectorToScalar();");
    let names = Names {
        choice: c,
        scores: s,
        partial: p,
        best: b,
        chosen: g.fresh("chosen"),
        j: g.fresh("j"),
        e: g.fresh("e"),
    };
    if spec.groups > 1 && spec.top_groups < spec.groups {
        eligible(g, &names, experts, spec);
    }
    choose(g, &names, experts, k);
    let Names { scores: s, chosen, j, .. } = &names;
    let total = g.fresh("total");
    g.line("// Weights are scores, not what the choice was by.");
    g.line(format!("float {total} = 0.0f;"));
    g.line(format!(
        "for (uint32_t {j} = 0; {j} < {k}; ++{j}) {total} += {s}.GetValue({chosen}[{j}]);"
    ));
    g.line(format!("for (uint32_t {j} = 0; {j} < {k}; ++{j}) {{"));
    g.line(format!("    {ids}.SetValue({j}, {chosen}[{j}]);"));
    let divided = if spec.renormalize { format!(" / {total}") } else { String::new() };
    let scaled =
        if spec.scale == 1.0 { String::new() } else { format!(" * {}", float(spec.scale)) };
    g.line(format!("    {weights}.SetValue({j}, {s}.GetValue({chosen}[{j}]){divided}{scaled});"));
    g.line("}");
    if !spec.renormalize {
        g.line(format!("(void){total};"));
    }
    g.line("ScalarToVector();");
    for temp in [scores, choice, partial, best] {
        g.free(temp);
    }
    g.finish(outs[0])?;
    g.finish(outs[1])
}

/// Names in the source.
struct Names {
    choice: String,
    scores: String,
    partial: String,
    best: String,
    chosen: String,
    j: String,
    e: String,
}

/// Experts of groups that are not among the best can not be chosen. The score of a group is the sum
/// of its two largest; the smaller index is first among equals.
fn eligible(g: &mut Gen<'_>, names: &Names, experts: u64, spec: &RouteSpec) {
    let Names { choice, j, e, .. } = names;
    let (groups, size) = (spec.groups, experts / spec.groups);
    let (sums, group) = (g.fresh("group_scores"), g.fresh("group"));
    let never = float(NEVER);
    for line in [
        format!("// The {} best of {groups} groups of {size} experts.", spec.top_groups),
        format!("float {sums}[{groups}];"),
        format!("for (uint32_t {group} = 0; {group} < {groups}; ++{group}) {{"),
        format!("    float most = {never}, second = {never};"),
        format!(
            "    for (uint32_t {e} = {group} * {size}; {e} < ({group} + 1) * {size}; ++{e}) {{"
        ),
        format!("        const float found = {choice}.GetValue({e});"),
        "        if (found > most) {".to_owned(),
        "            second = most;".to_owned(),
        "            most = found;".to_owned(),
        "        } else if (found > second) {".to_owned(),
        "            second = found;".to_owned(),
        "        }".to_owned(),
        "    }".to_owned(),
        format!("    {sums}[{group}] = most + second;"),
        "}".to_owned(),
        format!("for (uint32_t {group} = 0; {group} < {groups}; ++{group}) {{"),
        "    uint32_t better = 0;".to_owned(),
        format!("    for (uint32_t {j} = 0; {j} < {groups}; ++{j}) {{"),
        format!(
            "        better += {sums}[{j}] > {sums}[{group}] || ({sums}[{j}] == {sums}[{group}] && {j} < {group});"
        ),
        "    }".to_owned(),
        format!("    if (better < {}) continue;", spec.top_groups),
        format!(
            "    for (uint32_t {e} = {group} * {size}; {e} < ({group} + 1) * {size}; ++{e}) {choice}.SetValue({e}, {never});"
        ),
        "}".to_owned(),
    ] {
        g.line(line);
    }
}

/// The `k` largest, ascending by index.
fn choose(g: &mut Gen<'_>, names: &Names, experts: u64, k: u64) {
    let Names { choice, partial, best, chosen, j, .. } = names;
    let place = g.fresh("place");
    for line in [
        format!("int32_t {chosen}[{k}];"),
        format!("for (uint32_t {j} = 0; {j} < {k}; ++{j}) {{"),
        "    ScalarToVector();".to_owned(),
        format!("    ReduceMax({best}, {choice}, {partial}, {experts}, true);"),
        "    VectorToScalar();".to_owned(),
        format!("    const int32_t found = {best}.ReinterpretCast<int32_t>().GetValue(1);"),
        format!("    {choice}.SetValue(found, {});", float(NEVER)),
        format!("    uint32_t {place} = {j};"),
        format!(
            "    for (; {place} > 0 && {chosen}[{place} - 1] > found; --{place}) {chosen}[{place}] = {chosen}[{place} - 1];"
        ),
        format!("    {chosen}[{place}] = found;"),
        "}".to_owned(),
    ] {
        g.line(line);
    }
}
