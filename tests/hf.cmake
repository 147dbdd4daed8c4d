# src/hf: model directories of Hugging Face's.
find_package(nlohmann_json 3.11 REQUIRED)
zero_test(hf USES hf config checkpoint base LIBS nlohmann_json::nlohmann_json FILES hf_weights hf_model_directory)
