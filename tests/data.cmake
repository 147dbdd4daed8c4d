zero_test(data USES data LIBS nlohmann_json::nlohmann_json PkgConfig::XXHASH ZLIB::ZLIB
          FILES bpe_trainer tokenizer tokenizer_files special_tokens sentencepiece token_file sampler tokenize_files)
