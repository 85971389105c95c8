// Prints the token ids that llama.cpp gives to texts: the reference for real model files.
//
//   g++ -std=c++17 llama_token_ids.cc -I llama.cpp/include -I llama.cpp/ggml/include
//       -L build/bin -lllama -lggml -lggml-base -o llama_token_ids
//   llama_token_ids MODEL.gguf < texts > ids
//
// Standard input holds texts separated by NUL; each gives one line of a JSON array of arrays.
// Neither the beginning-of-sequence token nor special tokens in the text are added.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (model == nullptr) return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const std::string in((std::istreambuf_iterator<char>(std::cin)), {});
  std::printf("[");
  for (size_t begin = 0; begin <= in.size();) {
    const size_t end = std::min(in.find('\0', begin), in.size());
    std::vector<llama_token> ids(end - begin + 16);
    const int n = llama_tokenize(vocab, in.data() + begin, end - begin, ids.data(), ids.size(),
                                 false, false);
    std::printf("%s[", begin == 0 ? "" : ",\n");
    for (int i = 0; i < n; ++i) std::printf("%s%d", i == 0 ? "" : ",", ids[i]);
    std::printf("]");
    begin = end + 1;
  }
  std::printf("]\n");
}
