#include "headrace/serve/server_prompt.h"

#include <algorithm>

#include "headrace/model/tokenizer_stream.h"

namespace headrace {
namespace {

ApiError refused(const Status& status, const std::string& param) {
  ApiError e;
  // A template that fails or meets a limit does so because of the messages.
  e.status = status.code() == Code::kBadFile ? 500 : 400;
  e.message = status.message();
  e.param = param;
  return e;
}

ApiError too_long(int64_t context, int64_t prompt, int64_t answer, const std::string& param) {
  ApiError e;
  e.message = text_of(
      "this server's context is %lld tokens; the prompt has %lld and its answer may have %lld, "
      "together %lld. Shorten the prompt or ask for fewer tokens",
      static_cast<long long>(context), static_cast<long long>(prompt),
      static_cast<long long>(answer), static_cast<long long>(prompt + answer));
  e.param = param;
  e.code = "context_length_exceeded";
  return e;
}

}  // namespace

PromptEncoder::PromptEncoder(const Model& model, int64_t context, int64_t answer_tokens)
    : model_(model), context_(context), answer_tokens_(answer_tokens) {
  if (model.chat_template.empty()) {
    no_chat_ = error(Code::kUsage, "this model has no chat template: use /v1/completions");
    return;
  }
  auto parsed = ChatTemplate::parse(model.chat_template);
  if (parsed.ok()) {
    chat_template_ = std::make_unique<const ChatTemplate>(std::move(parsed).value());
  } else {
    no_chat_ = error(Code::kUsage, "this model's chat template cannot be used: %s",
                     parsed.status().message().c_str());
  }
}

Result<std::vector<int32_t>> PromptEncoder::encode(const std::string& text,
                                                   bool add_special) const {
  EncodeOptions encode;
  encode.add_bos = add_special && model_.tokenizer.add_bos();
  encode.add_eos = add_special && model_.tokenizer.add_eos();
  return model_.tokenizer.encode(text, encode);
}

std::string PromptEncoder::decode(const std::vector<int32_t>& tokens) const {
  return valid_utf8(model_.tokenizer.decode(tokens, true));
}

Result<std::vector<int32_t>> PromptEncoder::chat_tokens(const GenerateRequest& request) const {
  HR_TRY(no_chat_);
  return encode_chat_json(model_, *chat_template_, request.messages_json);
}

std::variant<std::vector<Job>, ApiError> PromptEncoder::jobs(const GenerateRequest& request,
                                                             uint64_t seed) const {
  std::string param = request.chat ? "messages" : "prompt";
  std::vector<Job> jobs;
  for (size_t p = 0; p < (request.chat ? 1 : request.prompts.size()); ++p) {
    if (request.prompts.size() > 1) param = text_of("prompt[%zu]", p);
    Job job;
    if (!request.chat && request.prompts[p].is_tokens) {
      job.prompt = request.prompts[p].tokens;
    } else {
      // No end-of-text token after a prompt: it is to be continued.
      EncodeOptions encode;
      encode.add_bos = model_.tokenizer.add_bos();
      auto tokens = request.chat ? chat_tokens(request)
                                 : model_.tokenizer.encode(request.prompts[p].text, encode);
      if (!tokens.ok()) return refused(tokens.status(), param);
      job.prompt = std::move(tokens).value();
    }
    const auto length = static_cast<int64_t>(job.prompt.size());
    if (length == 0) return refused(error(Code::kUsage, "the prompt has no tokens"), param);
    const int64_t left = context_ - length;
    const int64_t unsaid = request.chat ? answer_tokens_ : kCompletionTokens;
    job.max_tokens = request.max_tokens >= 0
                         ? request.max_tokens
                         : std::clamp<int64_t>(left, 1, std::max<int64_t>(unsaid, 1));
    if (job.max_tokens > left) {
      const bool prompt_alone = left < 1 || request.max_tokens < 0;
      return too_long(context_, length, job.max_tokens, prompt_alone ? param : "max_tokens");
    }
    job.n = request.n;
    job.sampling = request.sampling;
    // Choice i of a job draws with its seed + i. Equal prompts are to differ; a seed that was given
    // means the same for each, as it would alone.
    if (!request.seed_given) job.sampling.seed = seed + p * static_cast<uint64_t>(request.n);
    job.stop = request.stop;
    job.logprobs = request.logprobs;
    job.ignore_end = request.ignore_end;
    job.priority = request.priority;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace headrace
