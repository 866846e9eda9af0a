#include "train/train_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/json_fields.h"
#include "base/storage.h"
#include "weights/config.h"

namespace k3 {
namespace {

constexpr int64_t kMaxSteps = int64_t{1} << 40;

std::string beside(const std::string& path, const std::string& name) {
  return (std::filesystem::path(path).parent_path() / name).string();
}

void read_model(const JsonFields& f, const std::string& path, TrainConfig& c) {
  const auto* model = f.find("model");
  if (!model) return;
  if (model->is_object()) {
    c.model_json = model->dump();
    c.model_path = path + ": model";
  } else if (model->is_string()) {
    c.model_path = beside(path, model->get<std::string>());
    c.model_json = read_text(DiskStorage(), c.model_path, kMaxConfigBytes);
  } else {
    f.fail("model", "a config.json as an object, or the path of one", shown_json(model));
  }
}

void read_data(const JsonFields& f, const std::string& path, TrainConfig& c) {
  using Form = DataSource::Form;
  const auto& list = f.list("data");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("data[{}]", i);
    if (!list[i].is_object()) f.fail(at, "an object", shown_json(&list[i]));
    const JsonFields source(list[i], path, at + ".");
    source.only({"file", "as"});
    constexpr Form kForms[] = {Form::kText, Form::kDocuments, Form::kChat, Form::kTokens};
    c.data.push_back({beside(path, source.text("file")),
                      kForms[source.choice("as", {"text", "documents", "chat", "tokens"})]});
  }
  if (c.data.empty()) f.fail("data", "at least one source", "none");
  for (const DataSource& d : c.data)
    if (d.form != Form::kTokens && c.tokenizer.empty())
      f.fail("tokenizer", "a folder, since there is text to tokenise", "nothing");
}

void read_optimizer(const JsonFields& top, TrainConfig& c) {
  if (!top.find("optimizer")) return;
  const JsonFields f = top.object("optimizer");
  f.only({"kind", "weight_decay", "beta1", "beta2", "epsilon", "momentum", "per_head",
          "per_head_gates", "clip", "qk_clip"});
  OptimizerOptions& o = c.optimizer;
  o.muon = f.choice("kind", {"muon", "adamw", nullptr}) != 1;
  o.weight_decay = f.number_or("weight_decay", 0, 10, false, o.weight_decay);
  o.beta1 = f.number_or("beta1", 0, 0.9999, false, o.beta1);
  o.beta2 = f.number_or("beta2", 0, 0.999999, false, o.beta2);
  o.epsilon = f.number_or("epsilon", 0, 1, true, o.epsilon);
  o.momentum = f.number_or("momentum", 0, 0.9999, false, o.momentum);
  o.per_head = f.boolean_or("per_head", o.per_head);
  o.per_head_gates = f.boolean_or("per_head_gates", o.per_head_gates);
  if (!o.muon)
    for (const char* key : {"momentum", "per_head", "per_head_gates"})
      if (f.find(key)) f.fail(key, "nothing, since \"kind\" is \"adamw\"", shown_json(f.find(key)));
  c.clip = f.number_or("clip", 0, 1e9, false, 1.0f);
  c.qk_clip = f.number_or("qk_clip", 0, 1e9, false, 0.0f);
}

void read_schedule(const JsonFields& top, TrainConfig& c) {
  Schedule& s = c.schedule;
  s.steps = c.steps;
  s.warmup = c.steps / 100;
  s.decay = c.steps / 5;
  if (!top.find("schedule")) return;
  const JsonFields f = top.object("schedule");
  f.only({"form", "peak", "last", "warmup", "decay"});
  s.form = f.choice("form", {"cosine", "wsd", nullptr}) == 1 ? Schedule::Form::kWsd
                                                             : Schedule::Form::kCosine;
  s.peak = f.number_or("peak", 0, 10, true, s.peak);
  s.last = f.number_or("last", 0, 1, false, s.last);
  s.warmup = f.integer_or("warmup", 0, c.steps, s.warmup);
  if (s.form == Schedule::Form::kCosine && f.find("decay"))
    f.fail("decay", "nothing, since \"form\" is \"cosine\"", shown_json(f.find("decay")));
  s.decay = f.integer_or("decay", 0, c.steps - s.warmup, std::min(s.decay, c.steps - s.warmup));
}

void read_reports(const JsonFields& top, TrainConfig& c) {
  if (top.find("validation")) {
    const JsonFields f = top.object("validation");
    f.only({"every", "rows"});
    c.validate_every = f.integer("every", 1, kMaxSteps);
    c.validation_rows = f.integer_or("rows", 1, 1 << 20, c.validation_rows);
    if (c.held_out == 0) top.fail("held_out", "a share above 0, since there is validation", "0");
  }
  if (top.find("samples")) {
    const JsonFields f = top.object("samples");
    f.only({"every", "tokens", "prompts"});
    c.sample_every = f.integer("every", 1, kMaxSteps);
    c.sample_tokens = f.integer_or("tokens", 1, 1 << 20, c.sample_tokens);
    const auto& prompts = f.list("prompts");
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (!prompts[i].is_string() || prompts[i].get_ref<const std::string&>().empty())
        f.fail(fmt::format("prompts[{}]", i), "a text", shown_json(&prompts[i]));
      c.sample_prompts.push_back(prompts[i].get<std::string>());
    }
    if (c.tokenizer.empty()) top.fail("tokenizer", "a folder, since there are samples", "nothing");
  }
  if (top.find("checkpoint")) {
    const JsonFields f = top.object("checkpoint");
    f.only({"every"});
    c.checkpoint_every = f.integer("every", 1, kMaxSteps);
  }
}

}  // namespace

TrainConfig parse_train_config(std::string_view json, const std::string& path) {
  nlohmann::json document = parse_json_document(json, path, kMaxConfigBytes);
  const JsonFields f(document, path, "");
  f.only({"model",          "tokenizer", "data",         "length",      "whole_documents",
          "held_out",       "steps",     "batch",        "micro_batch", "seed",
          "init_deviation", "precision", "quantization", "recompute",   "quantile_balancing",
          "optimizer",      "schedule",  "validation",   "samples",     "checkpoint"});
  TrainConfig c;
  read_model(f, path, c);
  if (f.find("tokenizer")) c.tokenizer = beside(path, f.text("tokenizer"));
  read_data(f, path, c);
  c.length = f.integer_or("length", 1, 1 << 24, c.length);
  c.whole = f.boolean_or("whole_documents", c.whole);
  c.held_out = f.number_or("held_out", 0, 0.5, false, static_cast<float>(c.held_out));
  c.steps = f.integer("steps", 1, kMaxSteps);
  c.batch = f.integer_or("batch", 1, 1 << 20, c.batch);
  c.micro_batch = f.integer_or("micro_batch", 1, c.batch, c.batch);
  c.seed = static_cast<uint64_t>(
      f.integer_or("seed", 0, std::numeric_limits<int64_t>::max(), static_cast<int64_t>(c.seed)));
  c.deviation = f.number_or("init_deviation", 0, 1, true, c.deviation);
  c.dtype = f.choice("precision", {"bf16", "f32", nullptr}) == 1 ? Dtype::kF32 : Dtype::kBf16;
  if (f.find("quantization")) {
    const JsonFields q = f.object("quantization");
    q.only({"experts"});
    c.experts = mxfp4_rule(q.text("experts"));
    if (!c.experts)
      q.fail("experts", "\"even\", \"floor\" or \"rceil\"", shown_json(q.find("experts")));
  }
  c.recompute = f.boolean_or("recompute", c.recompute);
  c.quantile_balancing = f.boolean_or("quantile_balancing", c.quantile_balancing);
  read_optimizer(f, c);
  read_schedule(f, c);
  read_reports(f, c);
  for (const char* report : {"validation", "samples", "checkpoint", "recompute"})
    document.erase(report);
  c.identity = document.dump();
  return c;
}

}  // namespace k3
